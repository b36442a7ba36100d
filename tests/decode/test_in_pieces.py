"""Translation in pieces: the best combinations of the answers for each piece."""

from collections.abc import Sequence
from itertools import product

import torch

from allyouneed.decode import Answer
from allyouneed.decode.sentences import in_pieces
from allyouneed.text.sentences import SentenceSplitter

TEXT = "One dog. Two dogs. Three dogs."


def test_the_best_combinations() -> None:
    torch.manual_seed(0)
    scores = -torch.rand(3, 4).sort(dim=1).values

    def answers(pieces: list[str], prefixes: Sequence[str] = ()) -> list[list[Answer]]:
        assert pieces == ["One dog.", "Two dogs.", "Three dogs."]
        assert prefixes == ["Ein", "", ""]  # a prefix belongs to the first piece
        return [
            [Answer(f"{piece}{rank}", score, 2 * score) for rank, score in enumerate(row)]
            for piece, row in zip(pieces, scores.tolist(), strict=True)
        ]

    found = in_pieces(SentenceSplitter(1), answers, n_best=4)([TEXT], ["Ein"])[0]
    every = sorted((sum(chosen) / 3 for chosen in product(*scores.tolist())), reverse=True)
    assert found[0].text == "One dog.0 Two dogs.0 Three dogs.0"
    torch.testing.assert_close([answer.score for answer in found], every[:4])
    torch.testing.assert_close([answer.logprob for answer in found], [6 * score for score in every[:4]])
    assert len({answer.text for answer in found}) == 4


def test_texts_in_one_piece_are_not_changed() -> None:
    whole = {" one  ": [Answer("eins", -1.0, -2.0)], "two": [Answer("zwei", -1.0, -2.0)]}
    found = in_pieces(SentenceSplitter(1), lambda texts, _=(): [whole[text] for text in texts], n_best=1)(list(whole))
    assert found == list(whole.values())
