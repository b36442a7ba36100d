"""BPE dropout: the default segmentation without it, varying ones with it, all of them repeatable."""

import random
from pathlib import Path

import numpy as np
import torch

from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text.bpe_dropout import SampledIds, WordWriter, merge_ranks, segment
from allyouneed.text.ragged import RaggedWriter
from allyouneed.text.specials import PAD
from allyouneed.text.tokenizer import TokenizerConfig, train

TEXTS = [
    f"the {word} sat on the {other}" for word in ("kitten", "doggie", "mouse") for other in ("matting", "carpet")
] * 4
TOKENIZER = train(TEXTS, TokenizerConfig(kind="bpe", size=320))
RANKS = merge_ranks(TOKENIZER)


def test_without_dropout_it_is_the_default_segmentation() -> None:
    for text in [*TEXTS, "unseen mattings, kittens & Straße"]:
        pieces = [piece for word in TOKENIZER.words(text) for piece in segment(word, RANKS, 0.0, random.random)]
        assert [TOKENIZER.vocabulary[piece] for piece in pieces] == TOKENIZER.encode(text)
        assert [piece for word in TOKENIZER.words(text) for piece in TOKENIZER.pieces(word)] == pieces


def test_with_dropout_the_pieces_of_a_word_vary() -> None:
    dice = random.Random(0).random
    word = TOKENIZER.words("matting")[0]
    samples = {tuple(segment(word, RANKS, 0.3, dice)) for _ in range(50)}
    assert len(samples) > 3
    assert {"".join(sample) for sample in samples} == {word}
    assert {tuple(segment(word, RANKS, 1.0, dice))} == {tuple(word)}


def test_sampled_ids_decode_to_the_text(tmp_path: Path) -> None:
    texts = [*TEXTS, "x" * 100]
    writer = WordWriter(tmp_path, "t", TOKENIZER)
    writer.extend(texts)
    writer.finish(0.2, random.Random(1).random, "<u2")
    writer.close()
    with RaggedWriter(tmp_path, "t", "<u2") as usual:
        usual.extend(TOKENIZER.encode_batch(texts))
    ids = SampledIds(tmp_path, "t", "<u2", 200)
    members = np.arange(len(texts))
    rows = [ids.rows(members, seed) for seed in range(40)]
    assert all([TOKENIZER.decode(row.tolist()) for row in sample] == texts for sample in rows)
    assert len({tuple(sample[0].tolist()) for sample in rows}) > 10
    assert len({tuple(sample[-1].tolist()) for sample in rows}) == 1  # too long to be sampled
    for seed, sample in enumerate(rows):
        assert ids.lengths(seed).tolist() == [len(row) for row in sample]
    short = SampledIds(tmp_path, "t", "<u2", 8)
    assert all(
        row.tolist() == TOKENIZER.encode(text)
        for row, text in zip(short.rows(members, 0), texts, strict=True)
        if len(row) > 8
    )


def test_a_translation_task_with_dropout(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    file = str(tmp_path / "x")
    tree = {"train": file, "valid": file, "batch_tokens": 400, "max_length": 64}
    config = TranslationConfig.model_validate({**tree, "tokenizer": {"size": 320, "dropout": 0.2}})
    data, again = config.prepare(tmp_path / "a", 1), config.prepare(tmp_path / "b", 1)
    assert data.epoch is not None
    seen = []
    for index in range(2 * data.epoch):
        batch, same = data.batch(3, index), again.batch(3, index)
        assert batch.output_BT is not None
        assert same.output_BT is not None
        assert torch.equal(batch.output_BT, same.output_BT)
        for row in batch.output_BT:
            assert data.codec.decode_target(row.tolist()) in TEXTS
            seen.append(tuple(row[row != PAD].tolist()))
    assert len(set(seen)) > len(set(TEXTS)) * 2
    target = data.codec.target
    assert target is not None
    held_out = [row for batch in data.held_out("valid") if batch.output_BT is not None for row in batch.output_BT]
    assert all(row[row != PAD].tolist() in [data.codec.encode_target(text) for text in set(TEXTS)] for row in held_out)
