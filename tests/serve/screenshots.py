"""Pictures of every view of the page, at two widths and in both colour schemes, for people to look at.

    python tests/serve/screenshots.py --out pictures [--runs runs] [FOLDER ...]

Without model folders, tiny models with random weights are made. The first folder should be a translator. Pictures are
named after the scene, the width and the colour scheme: `attention-1280-light.png`.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from page_browser import CHROMIUM, NARROW, WIDE, idle, link
from page_models import make_folders, serving, write_run
from playwright.sync_api import Page, sync_playwright

from allyouneed.serve.models import parse_model_argument

TIMEOUT = 120_000  # milliseconds
BROKEN = "flip = select(indices, length - indices - 1, ==);\nreverse = aggregate(flip;\n"
Scene = Callable[[Page, str, list[str]], None]


def opening(page: Page, server: str, names: list[str]) -> None:
    """The page as it opens."""
    page.goto(server)
    idle(page)


def output(page: Page, server: str, names: list[str]) -> None:
    """A finished output."""
    page.goto(link(server, "translate", model=names[0], text="four hundred and forty-one"))
    page.wait_for_selector(".output-tokens .tok")
    idle(page)


def unknown_input(page: Page, server: str, names: list[str]) -> None:
    """A text that the model has not seen the like of."""
    page.goto(link(server, "translate", model=names[0], text="Hello, how are you?"))
    idle(page)


def maps(page: Page, server: str, names: list[str]) -> None:
    """All maps, with a cell selected."""
    page.goto(link(server, "attention", model=names[0], text="four hundred and forty-one"))
    page.wait_for_selector("heat-map .cells")
    idle(page)
    page.locator("heat-map .cells").first.hover(position={"x": 100, "y": 60})


def token(page: Page, server: str, names: list[str]) -> None:
    """All maps, with a token selected."""
    page.goto(link(server, "attention", model=names[0], text="four hundred and forty-one"))
    page.wait_for_selector("heat-map .cells")
    idle(page)
    page.locator("token-strip").first.locator(".tok").nth(2).hover()


def thin_maps(page: Page, server: str, names: list[str]) -> None:
    """The maps of a long text."""
    text = "nine hundred and ninety-nine thousand three hundred and seventy-three"
    page.goto(link(server, "attention", model=names[0], text=text))
    page.wait_for_selector("heat-map .cells")
    idle(page)


def two_models(page: Page, server: str, names: list[str]) -> None:
    """Two models side by side."""
    page.goto(link(server, "beside", models=",".join(names[:2]), text="four hundred and forty-one"))
    page.wait_for_selector(".card")
    idle(page)


def all_models(page: Page, server: str, names: list[str]) -> None:
    """All models side by side, whatever their tasks."""
    page.goto(link(server, "beside", models=",".join(names), text="four hundred and forty-one"))
    page.wait_for_selector(".card")
    idle(page)


def program(page: Page, server: str, names: list[str]) -> None:
    """A program and its Transformer."""
    page.goto(link(server, "rasp", example="sort", input="hello"))
    page.wait_for_selector(".compiled figure")
    idle(page)


def broken_program(page: Page, server: str, names: list[str]) -> None:
    """A program that has become invalid."""
    page.goto(link(server, "rasp", example="reverse", input="hello"))
    page.wait_for_selector(".compiled figure")
    page.fill("textarea.code", BROKEN)
    page.wait_for_selector(".status.wrong")


def runs(page: Page, server: str, names: list[str]) -> None:
    """Learning curves."""
    page.goto(link(server, "runs"))
    page.wait_for_selector(".run")
    idle(page)


SCENES: dict[str, Scene] = {
    "opening": opening,
    "output": output,
    "unknown-input": unknown_input,
    "maps": maps,
    "token": token,
    "thin-maps": thin_maps,
    "two-models": two_models,
    "all-models": all_models,
    "program": program,
    "broken-program": broken_program,
    "runs": runs,
}


def wrong_key(page: Page, server: str, names: list[str]) -> None:
    """The form after a wrong key."""
    page.goto(server)
    page.fill("input[type=password]", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")


def shoot(scenes: dict[str, Scene], server: str, names: list[str], out: Path) -> None:
    """Write the pictures of some scenes."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for size in (WIDE, NARROW):
                for name, scene in scenes.items():
                    context: Any = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
                    context.set_default_timeout(TIMEOUT)
                    page = context.new_page()
                    scene(page, server, names)
                    page.screenshot(path=out / f"{name}-{size['width']}-{scheme}.png", full_page=True)
                    context.close()
        browser.close()


def main(arguments: Iterable[str] | None = None) -> None:
    """Serve the models and write all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="model folders; default: tiny models with random weights")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--runs", type=Path, help="folder of training runs; default: two invented runs")
    parser.add_argument("--scene", action="append", choices=[*SCENES, "wrong-key"], help="only this one; repeatable")
    given = parser.parse_args(None if arguments is None else list(arguments))
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = given.scene or [*SCENES, "wrong-key"]
    with tempfile.TemporaryDirectory() as temporary:
        folders = given.folders or make_folders(Path(temporary))
        logs = given.runs or Path(temporary) / "runs"
        if given.runs is None:
            write_run(logs / "finished", 400, end=True)
            write_run(logs / "killed", 410)
        names = [parse_model_argument(one)[0] for one in folders]
        if set(chosen) & SCENES.keys():
            with serving(folders, logs) as server:
                shoot({name: SCENES[name] for name in SCENES if name in chosen}, server, names, given.out)
        if "wrong-key" in chosen:
            with serving(folders[:1], logs, keys=("secret",)) as server:
                shoot({"wrong-key": wrong_key}, server, names, given.out)


if __name__ == "__main__":
    main()
