"""Alignments: sums over the tokens of a word by hand, links in both directions, models with and without attention."""

from pathlib import Path

import pytest
import torch
from decode_models import make_model

from allyouneed.decode.align import align, can_align, links, word_spans
from allyouneed.decode.sentences import align_pieces
from allyouneed.decode.translate import Answer
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.inspection.maps import translation_maps
from allyouneed.models import Model
from allyouneed.text.codec import Codec
from allyouneed.text.sentences import SentenceSplitter
from allyouneed.text.tokenizer import of_symbols

LETTERS = of_symbols("abcd .", "characters")
CODEC = Codec(LETTERS, LETTERS)
SOURCE, TARGET = "ab c dab", "d abc"


def bundle_of(model: Model) -> Bundle:
    return Bundle(Path("x"), model, CODEC, {}, "", "")


def test_weights_are_means_of_the_upper_heads_summed_over_words() -> None:
    torch.manual_seed(1)
    model = make_model("encoder-decoder", LETTERS.size)
    (found,) = align(model, CODEC, [(SOURCE, word_spans(SOURCE), TARGET, word_spans(TARGET))])
    maps = translation_maps(bundle_of(model), SOURCE, TARGET).of("cross")[1:]
    assert len(maps) == 1
    for j, (start, end) in enumerate(word_spans(TARGET)):
        row = []
        for first, behind in word_spans(SOURCE):
            weights = [
                sum(float(one.weights_BHTS[0, head, t, s]) for s in range(first, behind))
                for one in maps
                for head in range(2)
                for t in range(start, end)
            ]
            row.append(sum(weights) / len(weights))
        wanted = torch.tensor(row) / sum(row)
        assert found is not None
        torch.testing.assert_close(found[j], wanted)


def test_the_optimized_model_aligns_alike() -> None:
    torch.manual_seed(1)
    item = (SOURCE, word_spans(SOURCE), TARGET, word_spans(TARGET))
    model = make_model("encoder-decoder", LETTERS.size).float()
    (before,) = align(model, CODEC, [item])
    optimize_for_inference(model)
    (after,) = align(model, CODEC, [item])
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize(("kind", "wanted"), [("encoder-decoder", True), ("decoder", True), ("gru", False)])
def test_which_models_can_align(kind: str, wanted: bool) -> None:
    torch.manual_seed(1)
    model = make_model(kind, LETTERS.size)
    assert can_align(model, CODEC) is wanted
    item = (SOURCE, word_spans(SOURCE), TARGET, word_spans(TARGET))
    if not wanted:
        with pytest.raises(ConfigError, match="no attention"):
            align(model, CODEC, [item])
        return
    (found,) = align(model, CODEC, [item])
    assert found is not None
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2))


def test_links_go_in_both_directions() -> None:
    weights_JI = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4]])
    assert links(weights_JI) == [(0, 0), (0, 1), (1, 0), (2, 1)]
    assert links(torch.zeros(0, 3)) == links(None) == []


def test_pieces_are_aligned_on_their_own() -> None:
    torch.manual_seed(1)
    model = make_model("encoder-decoder", LETTERS.size)
    answer = Answer("d abc. b d", 0.0, 0.0, 9, ("d abc.", "b d"))
    found = align_pieces(model, CODEC, SentenceSplitter(1), "Bad cab. Dad bad.", answer)
    assert {(i < 2, j < 2) for i, j in found} == {(True, True), (False, False)}
    assert {j for _, j in found} == {0, 1, 2, 3}
