"""Pages and pictures of inspections: no text can run as a script, and any text can be drawn."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from allyouneed.config import parse
from allyouneed.folder import Bundle
from allyouneed.inspection.drawing import shorten
from allyouneed.inspection.inspect import inspect_text
from allyouneed.inspection.maps import record_maps, translation_maps
from allyouneed.inspection.page import png, write_inspection
from allyouneed.models import MODELS
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols

HOSTILE = "<b>x</b></script><script>alert(1)</script> $x^2_{$ \u202e 👩‍👩‍👧 one"
WORDS = of_symbols(["one", "<b>x</b></script><script>alert(1)</script>", "$x^2_{$", "\u202e"], "words")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    torch.manual_seed(1)
    fields = {"encoder_layers": 1, "decoder_layers": 1, "width": 12, "hidden": 12, "mixer": {"heads": 2}}
    model = parse(MODELS["encoder-decoder"], fields).build(Sizes(WORDS.size, WORDS.size)).eval()
    return Bundle(Path("runs/<i>/model"), model, Codec(WORDS, WORDS), {"about": "<i>a model</i>"}, "", "0")


def test_the_page_is_one_file_that_runs_only_its_own_script(bundle: Bundle, tmp_path: Path) -> None:
    page, picture = write_inspection(tmp_path / "new", bundle, HOSTILE, inspect_text(bundle, HOSTILE, "one"))
    text = page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, flags=re.S)
    assert [kind for kind, _ in scripts] == [' type="application/json" id="data"', ' type="module"']
    data = json.loads(scripts[0][1])
    assert data["title"] == HOSTILE
    assert data["look"]["target"] == ["one", "end"]
    found = base64.b64encode(hashlib.sha256(scripts[1][1].encode()).digest()).decode()
    assert f"script-src 'sha256-{found}'" in text
    assert not re.search(r"^(import|export) ", scripts[1][1], flags=re.M)


def test_pictures_of_any_text_and_of_many_maps(bundle: Bundle) -> None:
    for text in (HOSTILE, "one " * 120, ""):
        assert png(inspect_text(bundle, text, "one"), text).startswith(b"\x89PNG")


def test_notebooks_show_small_pictures_and_escape_texts(bundle: Bundle) -> None:
    found = inspect_text(bundle, HOSTILE, "one")
    with record_maps(bundle.model) as maps, torch.no_grad():
        bundle.model.encode(torch.tensor([[4, 5, 2]]))
    shown = [found._repr_html_(), maps[0]._repr_html_(), bundle._repr_html_()]
    shown.append(translation_maps(bundle, HOSTILE, "one")._repr_html_())
    for one in shown:
        assert "<script" not in one
        assert "<i>" not in one
        assert len(one) < 60_000
    assert "&lt;i&gt;a model" in bundle._repr_html_()
    assert 'src="data:image/png;base64,' in shown[0]


def test_labels_are_short_and_show_invisible_characters() -> None:
    assert shorten(" ", 5) == "␣"
    assert shorten("a\u202eb\n", 20) == "aU+202Eb⏎"
    assert shorten("abcdefgh", 5) == "abcd…"
