"""CTranslate2's vmap.txt and our shortlist give the same results for single texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import bundle_of

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")

import ctranslate2

from allyouneed.decode import SearchConfig, search
from allyouneed.errors import FolderError
from allyouneed.folder import Bundle
from allyouneed.interop.ctranslate2 import export, vmap
from allyouneed.interop.ctranslate2.export import export_folder
from allyouneed.interop.ctranslate2.files import SUPPRESSED, names_of
from allyouneed.shortlist.table import SPECIALS, Shortlist
from allyouneed.text.specials import EOS

pytestmark = pytest.mark.no_shapes


def bundle_with_shortlist(sharp: float = 3.0) -> Bundle:
    """Return a random model with a random shortlist."""
    bundle = bundle_of("encoder-decoder", {"output_bias": True}, sharp)
    size = bundle.codec.both()[0].size
    first = 1 + bundle.codec.both()[0].vocabulary[" "]  # after special ids and names that vmap.txt cannot contain
    lists = [sorted(set(torch.randint(first, size, (5 * (word >= first),)).tolist())) for word in range(size)]
    ends = torch.tensor([len(words) for words in lists]).cumsum(0)
    flat = torch.tensor([word for words in lists for word in words])
    always = torch.tensor([*range(SPECIALS), 9, 20])
    return replace(bundle, shortlist=Shortlist(always, flat, ends))


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_an_export_contains_the_shortlist_and_is_compared(tmp_path: Path, quantization: str) -> None:
    reports: list[tuple[float, str]] = []
    notes = export_folder(bundle_with_shortlist(), tmp_path / "out", quantization, lambda *one: reports.append(one))
    assert any("vmap.txt is the shortlist" in note for note in notes)
    fractions = [fraction for fraction, _ in reports]
    assert fractions == [stage / len(reports) for stage in range(len(reports))]  # no stage was skipped
    assert reports[-1][1] == "greedy search with the shortlist in both engines"
    assert (tmp_path / "out" / "vmap.txt").exists()
    assert "use_vmap=True" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("beam", [1, 4])
def test_searches_of_single_texts_are_the_same(tmp_path: Path, beam: int) -> None:
    bundle = bundle_with_shortlist()
    export_folder(bundle, tmp_path / "out")
    model: Any = bundle.model
    names = names_of(bundle.codec.both()[1], model.sizes.target)
    sources = [[*torch.randint(SPECIALS, bundle.codec.both()[0].size, (3 + row,)).tolist(), EOS] for row in range(9)]
    engine = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    found = engine.translate_batch(
        [[names[word] for word in source] for source in sources],
        beam_size=beam,
        length_penalty=0,
        use_vmap=True,
        max_batch_size=1,
        max_decoding_length=12,
        min_decoding_length=0,
        max_input_length=0,
        suppress_sequences=SUPPRESSED,
    )
    config = SearchConfig(beam=beam, length_penalty=0, max_length=12)
    ours = search(bundle.model, sources, config, shortlist=bundle.shortlist)
    assert [one.hypotheses[0] for one in found] == [[names[word] for word in best[0].ids] for best in ours]
    without = search(bundle.model, sources, config)
    assert [best[0].ids for best in ours] != [best[0].ids for best in without]  # so the shortlist has an effect


def test_an_export_with_another_shortlist_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_with_shortlist()
    assert bundle.shortlist is not None
    fewer = replace(bundle.shortlist, words=torch.full_like(bundle.shortlist.words, 9))
    monkeypatch.setattr(export, "write_vmap", lambda _, *rest: vmap.write_vmap(fewer, *rest))
    with pytest.raises(FolderError, match=r"greedy search with vmap\.txt differs"):
        export_folder(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_shortlist_is_left_out_if_a_name_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = Shortlist(torch.arange(SPECIALS), torch.tensor([4, 5]), torch.tensor([0, 0, 0, 0, 0, 2]))
    plain = ["<pad>", "<s>", "</s>", "<unk>", "a", "b"]
    assert vmap.unwritable_name(some, plain, plain) is None
    assert vmap.unwritable_name(some, [*plain[:5], "x y"], plain) == "x y"
    assert vmap.unwritable_name(some, plain, [*plain[:4], "\t", "b"]) == "\t"
    assert vmap.unwritable_name(some, [*plain[:4], "x y", "b"], plain) is None  # it allows no words, so it has no line
    monkeypatch.setattr(export, "unwritable_name", lambda *_: " ")
    notes = export_folder(bundle_with_shortlist(), tmp_path / "out")
    assert any("the shortlist is left out: CTranslate2's vmap.txt cannot contain ' '" in note for note in notes)
    assert not (tmp_path / "out" / "vmap.txt").exists()


def test_exported_decoders_have_no_shortlist(tmp_path: Path) -> None:
    bundle = replace(bundle_of("decoder", {}), shortlist=bundle_with_shortlist().shortlist)
    notes = export_folder(bundle, tmp_path / "out")
    assert "the shortlist is left out: CTranslate2 supports vmap.txt for encoder-decoder models only" in notes
    assert not (tmp_path / "out" / "vmap.txt").exists()
