"""Large corpora: a bounded sample for tokenisers, results in order, compact lengths."""

import threading
from pathlib import Path

import numpy as np
import pytest

from allyouneed.tasks import scale
from allyouneed.tasks.language import LanguageConfig
from allyouneed.tasks.scale import AHEAD, ahead, text_bytes, tokenizer_sample
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text import ragged
from allyouneed.text.ragged import Ragged, RaggedWriter


def test_a_sample_is_spread_over_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "TOKENIZER_BYTES", 100)
    assert list(tokenizer_sample(range(10), 100)) == list(range(10))
    assert list(tokenizer_sample(range(10), 301)) == [0, 4, 8]


def test_sizes_of_compressed_files_are_estimated(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt.gz", "c.parquet"):
        (tmp_path / name).write_bytes(bytes(10))
    assert text_bytes([tmp_path / "a.txt", tmp_path / "b.txt.gz", tmp_path / "c.parquet"]) == 90


def test_calls_run_beside_the_reader_and_results_keep_their_order() -> None:
    both = threading.Barrier(AHEAD, timeout=300)  # passes only if calls run at the same time

    def call(item: int) -> int:
        both.wait()
        return -item

    assert list(ahead(call, range(4 * AHEAD))) == [-item for item in range(4 * AHEAD)]
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda item: 1 // item, [1, 0, 2]))


@pytest.mark.parametrize("longest", [5, 70_000])
def test_short_lengths_are_those_of_the_sequences(
    longest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ragged, "_CHUNK", 3)
    lengths = [3, 0, longest, 1, 2, 0, 7, 5]
    with RaggedWriter(tmp_path, "x", "u1") as writer:
        writer.extend(bytes(length) for length in lengths)
    data = Ragged(tmp_path, "x", "u1")
    assert data.short_lengths(2).tolist() == [length + 2 for length in lengths]
    assert data.short_lengths().tolist() == data.lengths().tolist()
    assert data.short_lengths().dtype == (np.uint16 if longest < 1 << 16 else np.uint32)


def test_a_tokeniser_learns_from_a_sample_of_a_large_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "TOKENIZER_BYTES", 200)
    (tmp_path / "x.tsv").write_text("".join(f"even{number % 2}\tx\n" for number in range(40)))  # 320 bytes
    (tmp_path / "x.jsonl").write_text("".join(f'{{"text": "word{number}"}}\n' for number in range(40)))
    pairs = TranslationConfig.model_validate(
        {"train": str(tmp_path / "x.tsv"), "valid": str(tmp_path / "x.tsv"), "tokenizer": {"kind": "words"}}
    ).prepare(tmp_path / "pairs", 1)
    assert pairs.codec.source is not None
    assert " even0" in pairs.codec.source.vocabulary
    assert " even1" not in pairs.codec.source.vocabulary
    assert pairs.notes[0] == "train: 40 pairs"
    text = LanguageConfig.model_validate(
        {"train": str(tmp_path / "x.jsonl"), "valid": str(tmp_path / "x.jsonl"), "context": 4}
    ).prepare(tmp_path / "text", 1)
    assert text.codec.target is not None
    assert text.codec.target.size > 10  # small documents are read together, none of them is lost
