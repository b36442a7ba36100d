"""The page in a real browser: every view, by mouse and keyboard, on narrow and wide screens, with hostile texts.

Playwright drives Debian's Chromium (`apt-get install chromium`). A test fails on any error in the console, any dialog,
and any request to another origin.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from page_browser import NARROW, WIDE, Browser, fits, idle, link, until, wait_for_compiled
from page_models import PROGRAM, make_folders, serving, write_run
from serve_folders import captioner

from allyouneed import load
from allyouneed.folder import load_folder
from allyouneed.inspection.inspect import inspect_text
from allyouneed.inspection.page import write_inspection

pytestmark = pytest.mark.no_shapes
HOSTILE = {
    "script": "<script>window.hacked = 1; alert(1)</script>",
    "image": '<img src=x onerror="window.hacked = 1; alert(1)">',
    "directions": "abc \u202e\u2066 fed cba \u200f",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 é ㋿ 𝕏",
    "long": "x" * 1500,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_run(folder / "runs" / "finished", 400, end=True)
    write_run(folder / "runs" / "<i>live", 60)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    with serving(make_folders(folder), folder / "runs") as url:
        yield url


# --- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_tokens_are_streamed_with_their_probabilities(server: str, browser: Browser, size: dict[str, int]) -> None:
    page = browser.open(link(server, "translate", model="transformer", text="forty-one"), server, size)
    page.wait_for_selector(".output-tokens .tok")
    idle(page)
    assert "tokens in" in page.inner_text(".status") or "token in" in page.inner_text(".status")
    page.locator(".output-tokens .tok").first.focus()
    rows = page.locator(".choices li")
    assert rows.count() >= 5
    assert page.locator(".choices li.own").count() == 1
    assert "%" in rows.first.inner_text()
    page.keyboard.press("ArrowRight")
    assert "Token 2" in page.inner_text(".choices h4")
    page.select_option("select", "reverse")
    page.fill("textarea", "abcd")
    page.click(".act")
    until(page, "document.querySelectorAll('.output-tokens .tok').length === 4")
    browser.expect(400)  # the program cannot read the text of the translator
    assert fits(page)


def test_attention_maps(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="transformer", text="forty-one", target="zwei"), server)
    page.wait_for_selector("heat-map .cells")
    assert page.locator(".grid").count() == 3
    assert page.locator(".thumb").count() == 6 * 3  # a mean and two heads of six maps
    assert page.locator('.thumb[aria-pressed="true"]').count() == 1
    # Hover over a token: the tokens that it reads are shaded.
    page.locator("token-strip").first.locator(".tok").nth(1).hover()
    assert page.locator("token-strip").nth(1).locator(".tok.read").count() > 0
    # Choose a head with the arrow keys alone, then move through its cells.
    page.locator('.thumb[aria-pressed="true"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "head 1" in page.inner_text("map-explorer h3")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert "layer 1, head 1" in page.inner_text("map-explorer h3")
    page.locator("heat-map .cells").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "reads" in page.inner_text("heat-map .readout")
    assert "%" in page.inner_text("heat-map .readout")


def test_every_sentence_is_translated(tmp_path: Path, browser: Browser) -> None:
    text = "Two men sit! They wait."
    folder = captioner(tmp_path)
    (wanted,) = load(folder).translate([text])
    assert len(wanted.split()) == 2
    with serving([str(folder)], tmp_path / "runs") as url:
        page = browser.open(link(url, "translate", model="captions", text=text), url)
        idle(page)
        assert page.inner_text(".plain .answer") == wanted
        assert "".join(page.locator(".output-tokens .tok").all_text_contents()).split() == wanted.split()
        page.goto(link(url, "beside", models="captions", text=text))
        page.wait_for_selector(".card heat-map .cells")
        idle(page)
        assert page.inner_text(".card .answer") == wanted
        assert "translated in 2 pieces" in page.locator(".card .note").last.inner_text()
        assert "The weights of this map show" in page.locator(".card .note").last.inner_text()
        page.goto(link(url, "attention", model="captions", text=text))
        page.wait_for_selector("map-explorer heat-map .cells")
        assert "translated in 2 pieces" in page.inner_text("map-explorer > .note")
        assert "The output and the maps" in page.inner_text("map-explorer > .note")
        page.goto(link(url, "attention", model="captions", text="They wait."))
        until(page, "!document.querySelector('map-explorer > .note')")


def test_a_link_restores_the_view(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="bahdanau", text="one"), server)
    page.wait_for_selector("heat-map .cells")
    page.select_option("select", "transformer")
    until(page, "document.querySelectorAll('.thumb').length > 3")
    page.fill("textarea >> nth=0", "seventy-two & <more>")
    page.keyboard.press("Enter")
    idle(page)
    page.locator(".thumb").nth(4).click()
    title, address = page.inner_text("map-explorer h3"), page.url
    again = browser.open(address, server)
    again.wait_for_selector("heat-map .cells")
    assert again.input_value("textarea >> nth=0") == "seventy-two & <more>"
    assert again.input_value("select") == "transformer"
    assert again.inner_text("map-explorer h3") == title
    # The text is kept when the view changes.
    again.click("nav >> text=Generate")
    assert again.input_value("textarea") == "seventy-two & <more>"
    again.go_back()
    again.wait_for_selector("heat-map .cells")


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_models_side_by_side(server: str, browser: Browser, size: dict[str, int]) -> None:
    page = browser.open(link(server, "beside", models="transformer,bahdanau,lstm", text="forty-one"), server, size)
    until(page, "document.querySelectorAll('.card heat-map .cells').length === 3")
    idle(page)
    facts = page.locator(".card").nth(2).inner_text()
    assert "influence" in facts
    assert "32" in facts  # steps of a recurrence
    for place in range(3):
        speed = page.locator(".card").nth(place).locator("dd").first.inner_text()
        assert speed == "–" or int(speed.replace(",", "")) > 0  # an untrained model may output nothing
    page.locator(".chip input").nth(2).uncheck()
    until(page, "document.querySelectorAll('.card').length === 2")
    idle(page)
    assert "lstm" not in page.url
    assert fits(page)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_program_runs_while_it_is_typed(server: str, browser: Browser, size: dict[str, int]) -> None:
    page = browser.open(link(server, "rasp", program=PROGRAM, input="hello"), server, size)
    wait_for_compiled(page)
    assert page.inner_text(".values .own").split() == ["reverse", *"olleh"]
    assert "the same as the program" in page.inner_text(".compiled")
    page.fill("input[aria-label=Input]", "abc")
    until(page, "document.querySelector('.values .own')?.innerText.includes('c\\tb\\ta')")
    page.locator("textarea.code").press_sequentially("x = tokens +", delay=1)
    page.wait_for_selector(".status.wrong")
    assert page.inner_text(".status").startswith("Line ")
    page.select_option("select", "sort")
    until(page, "document.querySelector('.values .own th')?.textContent === 'sorted'")
    assert page.locator(".flow heat-map").count() > 0
    assert "example=sort" in page.url
    assert fits(page)
    browser.expect(400)  # a program may time out on a busy machine


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_curves_are_updated_live(server: str, folder: Path, browser: Browser, size: dict[str, int]) -> None:
    page = browser.open(f"{server}/#/runs", server, size)
    page.wait_for_selector(".run")
    assert {"finished", "<i>live"} <= set(page.locator(".run .title").all_inner_texts())
    with (folder / "runs" / "<i>live" / "log.jsonl").open("a") as log:
        number = 3000 - size["width"]  # the second test continues the log of the first
        log.write(
            json.dumps({"kind": "step", "step": number, "loss": 0.25, "tokens": 1, "seconds": 1, "flops": 1}) + "\n"
        )
    until(page, f"document.querySelector('.runs')?.innerText.includes('step {number:,}')")
    until(page, "document.querySelector('line-chart canvas').getAttribute('aria-label').includes('0.25')")
    page.get_by_label("log x").check()
    page.select_option("select >> nth=1", "tokens")
    assert "logx=1" in page.url
    assert "x=tokens" in page.url
    assert fits(page)


# --- hostile texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_neither_run_nor_break_the_layout(server: str, browser: Browser, name: str) -> None:
    text = HOSTILE[name]
    places = [
        link(server, "translate", model="language", text=text),
        link(server, "attention", model="language", text=text[:60]),
        link(server, "attention", model="transformer", text=text, target=text[:40]),
        link(server, "beside", models="language,transformer", text=text[:80]),
        link(server, "rasp", program=f'x = "{text.replace(chr(34), "")[:200]}";\ny = tokens;', input=text[:40]),
        link(server, text, model=text),
    ]
    page = browser.open(places[0], server, NARROW)
    for place in places:
        page.goto(place)
        idle(page)
        assert fits(page), place
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img, main i").count() == 0
    browser.expect(400)  # 1,500 tokens exceed the limit of maps


def test_a_long_text_scrolls_inside_its_map(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="language", text="the cat sat " * 19), server, NARROW)
    page.wait_for_selector("heat-map .cells")
    assert fits(page)
    assert page.locator(".labels.rows bdi").count() > 200
    assert page.locator(".labels.rows .thinned").count() > 100
    assert page.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('heat-map .scroll'))")
    page.locator("heat-map .cells").focus()
    for _ in range(60):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.querySelector('heat-map .scroll').scrollLeft") > 0
    assert page.locator(".labels.columns .on").is_visible()


def test_a_text_that_is_too_long_is_reported(server: str, browser: Browser) -> None:
    page = browser.open(link(server, "attention", model="language", text=HOSTILE["long"]), server, NARROW)
    page.wait_for_selector(".status.wrong")
    assert "256 tokens" in page.inner_text(".status")
    browser.expect(400)
    assert fits(page)


# --- keyboard, light and dark ----------------------------------------------------------------------------------------


def test_keyboard_only(server: str, browser: Browser) -> None:
    page = browser.open(f"{server}/#/translate", server)
    page.wait_for_selector(".output-tokens .tok")
    idle(page)
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        name = page.evaluate("(on => on.className || on.textContent.trim() || on.tagName)(document.activeElement)")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        seen.append(name)
        assert outline != "none", f"{name}: its focus is not visible"
        if name == "act":
            break
    assert "Attention" in seen
    assert seen[-1] == "act"
    page.keyboard.press("Enter")
    idle(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Copy"
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement === [...document.querySelectorAll('.output-tokens .tok')].at(-1)")


def test_light_and_dark(server: str, browser: Browser) -> None:
    papers = []
    for dark in (False, True):
        page = browser.open(f"{server}/#/attention", server, dark=dark)
        page.wait_for_selector("heat-map .cells")
        papers.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert papers == ["rgb(251, 250, 246)", "rgb(23, 21, 18)"]
    # A change of the colour scheme repaints the maps.
    image = "document.querySelector('heat-map canvas').getContext('2d').getImageData(0, 0, 1, 1)"
    pixel = f"JSON.stringify([...{image}.data])"
    before = page.evaluate(pixel)
    page.emulate_media(color_scheme="light")
    until(page, f"{pixel} !== {json.dumps(before)}")


def test_the_page_asks_for_a_key(folder: Path, browser: Browser) -> None:
    with serving([str(folder / "reverse")], folder / "runs", keys=("secret",)) as url:
        page = browser.open(url, url)
        page.fill("input[type=password]", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("textarea")
        browser.expect(401)
        assert browser.close() == []


# --- inspect ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["script", "image", "directions"])
def test_an_inspection_page_needs_no_server(
    folder: Path, server: str, browser: Browser, tmp_path: Path, name: str
) -> None:
    bundle = load_folder(folder / "language")
    text = HOSTILE[name] + "</script><script>window.hacked = 2</script>"
    path, picture = write_inspection(tmp_path, bundle, text, inspect_text(bundle, text))
    assert picture.read_bytes().startswith(b"\x89PNG")
    address = path.as_uri()
    page = browser.open(address, address, NARROW)
    page.wait_for_selector("heat-map .cells")
    assert page.evaluate("window.hacked") is None
    assert fits(page)
    page.locator(".thumb").nth(1).click()
    assert "head 1" in page.inner_text("map-explorer h3")
    page.locator(".output-tokens .tok").first.hover()
    assert page.locator(".choices li").count() >= 5
