"""How alike texts are, every one with every one: sentence chrF and BLEU as sacreBLEU defines them.

    utility_NN[h, r]    the score of hypothesis h against reference r, from 0 to 100

sacreBLEU counts the n-grams of both texts for each pair. Here those of each text are counted once. The k-th occurrence
of an n-gram is a column of a sparse table with a row for each text, so the matches of all pairs are the table times its
transpose.

Cost: the sum over columns of the squared number of texts that have them; memory is that of the n-grams of all texts.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

Utility = Literal["chrf", "bleu"]
BLEU_ORDER = 4  # words of the longest n-grams
Array = np.ndarray[Any, np.dtype[np.float64]]


def utilities(texts: Sequence[str], utility: Utility) -> Array:
    """Return the score (N, N) of each text against each text."""
    return {"chrf": chrf, "bleu": bleu}[utility](texts)


def chrf(texts: Sequence[str]) -> Array:
    """Return sentence chrF (character 6-grams, beta 2, blanks ignored)."""
    letters = ["".join(text.split()) for text in texts]
    precision_NN, recall_NN, orders_NN = (np.zeros((len(texts), len(texts))) for _ in range(3))
    for order in range(1, CHRF.CHAR_ORDER + 1):
        total_N, match_NN = _matches([_ngrams(text, order) for text in letters])
        both_NN = (total_N[:, None] > 0) & (total_N > 0)
        precision_NN += np.divide(match_NN, total_N[:, None], out=np.zeros_like(match_NN), where=both_NN)
        recall_NN += np.divide(match_NN, total_N, out=np.zeros_like(match_NN), where=both_NN)
        orders_NN += both_NN
    orders_NN[orders_NN == 0] = 1
    precision_NN, recall_NN, square = precision_NN / orders_NN, recall_NN / orders_NN, CHRF.BETA**2
    below_NN = square * precision_NN + recall_NN
    above_NN = (1 + square) * precision_NN * recall_NN
    return 100 * np.divide(above_NN, below_NN, out=np.zeros_like(above_NN), where=below_NN > 0)


def bleu(texts: Sequence[str]) -> Array:
    """Return sentence BLEU (13a tokens, exponential smoothing, effective order)."""
    split = Tokenizer13a()
    words = [tuple(split(text.rstrip()).split()) for text in texts]
    length_N, N = np.array([len(row) for row in words], dtype=np.float64), len(texts)
    log_NN, orders_N1, halved_NN, any_NN = np.zeros((N, N)), np.zeros((N, 1)), np.zeros((N, N)), np.zeros((N, N), bool)
    for order in range(1, BLEU_ORDER + 1):
        total_N, match_NN = _matches([_ngrams(row, order) for row in words])
        none_NN = (match_NN == 0) & (total_N[:, None] > 0)
        halved_NN += none_NN  # an order without matches counts as half a match, the next one as a quarter
        precision_NN = np.where(none_NN, 0.5**halved_NN, match_NN) / np.maximum(total_N, 1)[:, None]
        log_NN += np.log(precision_NN, out=np.zeros((N, N)), where=precision_NN > 0)
        orders_N1 += total_N[:, None] > 0
        any_NN |= match_NN > 0
    penalty_NN = np.minimum(0, 1 - length_N / np.maximum(length_N, 1)[:, None])
    score_NN: Array = 100 * np.exp(log_NN / np.maximum(orders_N1, 1) + penalty_NN) * any_NN
    return score_NN


def _ngrams(items: Sequence[str], n: int) -> Counter[Sequence[str]]:
    """Return how often a text, or a tuple of words, has each of its parts of length n."""
    return Counter(items[start : start + n] for start in range(len(items) - n + 1))


def _matches(counts: Sequence[Counter[Sequence[str]]]) -> tuple[Array, Array]:
    """Return the number of n-grams (N) of each item, and how many two items have in common (N, N)."""
    from scipy.sparse import csr_array  # imported here: it takes a while, and few translations need it

    numbers: dict[tuple[Sequence[str], int], int] = {}
    columns = [
        numbers.setdefault((gram, again), len(numbers))
        for count in counts
        for gram, often in count.items()
        for again in range(often)
    ]
    total_N = np.array([count.total() for count in counts])
    ends_N = np.concatenate([[0], np.cumsum(total_N)])
    table_NG = csr_array((np.ones(len(columns)), columns, ends_N), shape=(len(counts), len(numbers)))
    return total_N.astype(np.float64), (table_NG @ table_NG.T).toarray()
