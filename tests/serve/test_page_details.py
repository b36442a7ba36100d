"""Details of the page in a real browser: what it says when something is wrong, legends, labels, numbers, copying."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from page_browser import NARROW, WIDE, Browser, fits, idle, link, until, wait_for_compiled
from page_models import PROGRAM, make_folders, request, serving, write_run

pytestmark = pytest.mark.no_shapes
BROKEN = PROGRAM + "x = aggregate(flip;\n"
# Waits for a killed signal while it holds the lock of a run, as training does.
HOLD = """
import sys, time
from pathlib import Path
from allyouneed.storage import lock
with lock(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("details")
    make_folders(folder)
    write_run(folder / "runs" / "killed", 410)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    names = ("transformer", "bahdanau", "lstm", "language", "reverse")
    with serving([str(folder / name) for name in names], folder / "runs") as url:
        yield url


# --- what is wrong is said -------------------------------------------------------------------------------------------


def test_a_broken_program_shows_no_transformer(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "rasp", program=PROGRAM, input="hello"), server)
    wait_for_compiled(page)
    page.fill("textarea.code", BROKEN)
    page.wait_for_selector(".status.wrong")
    until(page, "document.querySelectorAll('.compiled figure').length === 0")
    assert "until the error above is corrected" in page.inner_text(".compiled")
    page.fill("textarea.code", PROGRAM)
    wait_for_compiled(page)
    page.fill("input[aria-label=Input]", "")
    page.wait_for_selector(".status.wrong")
    assert page.locator(".flow *, .compiled figure").count() == 0
    browser.expect(400)


def test_an_error_clears_the_output_of_the_last_text(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="reverse", text="abcd"), server)
    until(page, "document.querySelector('main > * > .answer')?.textContent.includes('d')")
    page.fill("textarea >> nth=0", "xyz")
    page.keyboard.press("Enter")
    page.wait_for_selector(".status.wrong")
    assert page.inner_text("main > * > .answer") == ""
    assert page.locator("heat-map").count() == 0
    browser.expect(400)


def test_a_wrong_key_is_refused_with_a_word(folder: Path, browser: Browser) -> None:
    with serving([str(folder / "reverse")], folder / "runs", keys=("secret",)) as url:
        page = browser.open(url, url)
        page.wait_for_selector("input[type=password]")
        assert page.locator("[role=alert]").count() == 0
        for wrong in ("wrong", "schlüssel"):
            page.fill("input[type=password]", wrong)
            page.keyboard.press("Enter")
            page.wait_for_selector("input[type=password][aria-invalid=true]:focus")
            assert "does not accept this key" in page.inner_text("[role=alert]")
        page.keyboard.type("secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("textarea")
        browser.expect(401)
        assert browser.close() == []


def test_unknown_words_are_named(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "translate", model="transformer", text="Hello, forty people?"), server)
    page.wait_for_selector("view-translate .warning")
    idle(page)
    assert "Not in this model's vocabulary: Hello," in page.inner_text("view-translate .warning")
    assert "forty" not in page.inner_text("view-translate .warning")
    page.goto(link(server, "attention", model="transformer", text="Hello, forty people?"))
    page.wait_for_selector("view-attention .warning")
    page.fill("textarea >> nth=0", "forty")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('main .warning').length === 0")


def test_a_model_that_is_not_served_is_named(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="elsewhere", text="forty"), server)
    page.wait_for_selector("heat-map .cells")
    assert page.inner_text("main > .warning") == "Not served here: elsewhere."


# --- maps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_labels_of_thin_maps_are_whole(server: str, browser: Browser, size: dict[str, int]) -> None:
    page = browser.open(link(server, "attention", model="language", text="the cat sat " * 8), server, size)
    page.wait_for_selector("heat-map .cells")
    thickness = """side => [...document.querySelectorAll(`heat-map .labels.${side} bdi:not(.thinned)`)].map(label => {
        const box = label.getBoundingClientRect(), font = parseFloat(getComputedStyle(label).fontSize);
        return (side === "rows" ? box.height : box.width) / font;
    })"""
    for side in ("rows", "columns"):
        found = page.evaluate(thickness, side)
        assert len(found) > 10
        assert min(found) >= 1.2, side
    assert page.locator("heat-map .thinned").count() > 0
    assert fits(page)


def test_the_legend_follows_the_square_root(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="transformer", text="forty-one"), server)
    page.wait_for_selector("heat-map .cells")
    places = page.evaluate("""() => {
        const bar = document.querySelector("heat-legend canvas").getBoundingClientRect();
        const middle = tick => (tick.getBoundingClientRect().left + tick.getBoundingClientRect().right) / 2;
        const ticks = [...document.querySelectorAll("heat-legend .ticks span")];
        return ticks.map(tick => [tick.textContent, (middle(tick) - bar.left) / bar.width]);
    }""")
    assert [name for name, _ in places] == ["0", "5 %", "25 %", "50 %", "100 %"]
    for name, place in places[1:]:
        assert place == pytest.approx((int(name.removesuffix(" %")) / 100) ** 0.5, abs=0.01)
    assert "square-root" in page.inner_text("heat-legend")


def test_a_cell_shows_its_number_and_a_token_marks_its_row(server: str, browser: Browser) -> None:
    text = "forty-one"
    _, found = request(f"{server}/attention", {"model": "transformer", "text": text, "target": "zwei"})
    page = browser.open(link(server, "attention", model="transformer", text=text, target="zwei"), server)
    page.wait_for_selector("heat-map .cells")
    main = [one for one in found["maps"] if one["part"] == "cross"][-1]["weights"]
    weight = sum(head[1][2] for head in main) / len(main)
    box = page.locator("heat-map .cells").bounding_box()
    rows, columns = len(main[0]), len(main[0][0])
    cell = {"x": 2.5 * box["width"] / columns, "y": 1.5 * box["height"] / rows}
    page.locator("heat-map .cells").hover(position=cell)
    page.wait_for_selector("heat-map .tip:visible")
    shown = page.inner_text("heat-map .tip strong")
    assert float(shown.removesuffix(" %")) == pytest.approx(100 * weight, abs=0.51)
    assert shown in page.inner_text(".readings") or weight < 0.005
    # A reading token marks its row, a read token its column.
    bands = page.locator("heat-map .band")
    for strip, (name, token) in enumerate((("rows", 3), ("columns", 1))):
        page.locator("token-strip").nth(strip).locator(".tok").nth(token).hover()
        assert [bands.nth(0).is_visible(), bands.nth(1).is_visible()] == [strip == 0, strip == 1]
        labels = page.locator(f"heat-map .labels.{name} bdi")
        assert page.locator("heat-map .labels .on").all_inner_texts() == [labels.nth(token).inner_text()]
        band, label = bands.nth(strip).bounding_box(), labels.nth(token).bounding_box()
        middle = [("y", "height"), ("x", "width")][strip]
        ends = [one[middle[0]] + one[middle[1]] / 2 for one in (band, label)]
        assert ends[0] == pytest.approx(ends[1], abs=1.5)
        assert "%" in page.inner_text(".readings")
    page.mouse.move(1, 1)
    until(page, "[...document.querySelectorAll('heat-map .band')].every(band => band.hidden)")


def test_layers_have_one_name(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="transformer", text="forty-one"), server)
    page.wait_for_selector("heat-map .cells")
    assert "Cross-attention, layer 2" in page.inner_text("map-explorer")
    assert "blocks" not in page.inner_text("main")


# --- side by side ----------------------------------------------------------------------------------------------------


def test_two_cards_use_the_whole_width_and_line_up(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "beside", models="transformer,bahdanau", text="forty-one"), server)
    until(page, "document.querySelectorAll('.card heat-map .cells').length === 2")
    idle(page)
    boxes = [page.locator(".card").nth(place).bounding_box() for place in range(2)]
    whole = page.locator(".cards").bounding_box()
    assert boxes[0]["x"] == pytest.approx(whole["x"], abs=1)
    assert boxes[1]["x"] + boxes[1]["width"] == pytest.approx(whole["x"] + whole["width"], abs=1)
    for part in (".numbers", ".map"):
        tops = [page.locator(f".card >> nth={place}").locator(part).bounding_box()["y"] for place in range(2)]
        assert tops[0] == pytest.approx(tops[1], abs=1)
    assert page.locator("heat-legend").is_visible()


def test_unlike_tasks_are_not_mixed_without_a_word(server: str, browser: Browser) -> None:
    page = browser.open(f"{server}/#/beside", server)
    page.wait_for_selector(".card")
    assert page.locator(".card h3").all_inner_texts() == ["transformer", "bahdanau", "lstm"]  # one task
    idle(page)
    assert not page.locator("view-beside > .warning").is_visible()
    legends = page.locator(".chips legend").all_inner_texts()
    assert legends == ["Task: numbers, en → de", "Task: language, continues a text", "Task: rasp, classifies"]
    page.locator(".chip", has_text="language").click()
    page.wait_for_selector("view-beside > .warning:visible")
    assert "numbers, en → de; language, continues a text" in page.inner_text("view-beside > .warning")
    idle(page)


# --- output ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["transformer", "language", "reverse"])
def test_the_first_view_opens_with_an_output_to_copy(server: str, browser: Browser, model: str) -> None:
    page = browser.open(link(server, "translate", model=model), server)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.wait_for_selector(".output-tokens .tok")
    idle(page)
    assert page.input_value("textarea") != ""
    shown = page.inner_text(".plain .answer")
    assert shown
    page.click(".copy")
    until(page, "document.querySelector('.copy')?.textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == shown.strip() or "U+" in shown  # control characters are shown as code points
    # Without HTTPS there is no clipboard: the text is selected, and the browser copies what is selected.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.click(".copy")
    assert page.evaluate("getSelection().toString()").strip() == shown.strip()


@pytest.mark.parametrize(
    ("view", "path"), [("translate", "/v1/completions"), ("attention", "/attention"), ("beside", "/v1/completions")]
)
def test_enter_runs_every_view(server: str, browser: Browser, view: str, path: str) -> None:
    values = {"models": "transformer"} if view == "beside" else {"model": "transformer"}
    page = browser.open(link(server, view, text="one", **values), server)
    page.wait_for_selector("textarea")
    idle(page)
    page.fill("textarea >> nth=0", "forty")
    page.keyboard.press("Shift+Enter")
    assert page.input_value("textarea >> nth=0") == "forty\n"
    page.keyboard.press("Backspace")
    with page.expect_request(f"{server}{path}") as sent:
        page.keyboard.press("Enter")
    assert "forty" in (sent.value.post_data or "")
    assert page.input_value("textarea >> nth=0") == "forty"
    idle(page)


# --- a server that restarts, a run that is killed --------------------------------------------------------------------


def options(page: Any) -> list[str]:
    return [str(one) for one in page.locator("select option").all_inner_texts()]


def test_the_models_of_a_restarted_server_appear(folder: Path, browser: Browser) -> None:
    with serving([str(folder / "transformer")], folder / "runs") as url:
        page = browser.open(link(url, "translate", model="transformer", text="one"), url)
        idle(page)
        assert options(page) == ["transformer"]
    page.fill("textarea", "two")
    page.keyboard.press("Enter")
    page.wait_for_selector("body > .warning:visible")
    assert "not responding" in page.inner_text("body > .warning")
    port = int(url.rpartition(":")[2])
    # The connection comes back: no reload, no click.
    with serving([str(folder / name) for name in ("transformer", "lstm")], folder / "runs", port):
        until(page, "document.querySelectorAll('select option').length === 2")
        until(page, "document.querySelector('body > .warning').hidden")
        assert page.input_value("textarea") == "two"
        until(page, "document.querySelector('.status')?.textContent.includes('token')")  # the request that failed
        idle(page)
    # The tab gets the focus again.
    with serving([str(folder / "language")], folder / "runs", port):
        page.evaluate("dispatchEvent(new Event('focus'))")
        until(page, "document.querySelector('select')?.textContent === 'language'")
        assert "Not served here: transformer" in page.inner_text("main")
        idle(page)
        browser.forget("ERR_CONNECTION_REFUSED")
        assert browser.close() == []


def test_a_killed_run_is_stopped(server: str, folder: Path, browser: Browser) -> None:
    command = [sys.executable, "-c", HOLD, str(folder / "runs" / "killed")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        page = browser.open(f"{server}/#/runs", server)
        page.wait_for_selector(".run")
        assert page.inner_text(".run .state") == "running, 41 %"
        process.kill()
    until(page, "document.querySelector('.run .state')?.textContent === 'stopped at 41 %'")
    assert "ago" in page.inner_text(".run .note")


def test_every_address_of_the_page_is_relative() -> None:
    # The server may be behind a proxy, below a path.
    page = Path(__file__).parents[2] / "src" / "allyouneed" / "serve" / "page"
    for file in page.iterdir():
        text = file.read_text(encoding="utf-8")
        for words in ('href="/', 'src="/', 'fetch("/', "fetch(`/", 'from "/', 'import "/', "url(/"):
            assert words not in text, f"{file.name} has {words}"
