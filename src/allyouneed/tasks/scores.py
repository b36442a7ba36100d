"""Scores of decoded text, each with a signature that makes the number reproducible."""

import re
from collections import Counter
from collections.abc import Sequence

from allyouneed.tasks.base import Score

WORD = re.compile(r"\w+")


def bleu_and_chrf(hypotheses: Sequence[str], references: Sequence[str], tokens: str = "13a") -> list[Score]:
    """Return BLEU (Papineni et al. 2002) and chrF (Popović 2015) of detokenised text, by sacreBLEU (Post 2018)."""
    # Imported here: it takes a quarter of a second.
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores = []
    for name, metric in (("bleu", BLEU(tokenize=tokens)), ("chrf", CHRF())):
        value = float(metric.corpus_score(list(hypotheses), [list(references)]).score)
        scores.append(Score(name, value, f"{metric.get_signature()}|n:{len(references)}"))
    return scores


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Return the fraction of hypotheses that equal the reference, ignoring blanks at the ends."""
    equal = sum(ours.strip() == theirs.strip() for ours, theirs in zip(hypotheses, references, strict=True))
    return Score("exact", equal / max(1, len(references)), f"n:{len(references)}|match:whole text")


def accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Return the fraction of right classes; the signature has the counts of each class: right / all."""
    names = sorted(set(references))
    right = {name: [0, 0] for name in names}
    for ours, theirs in zip(hypotheses, references, strict=True):
        right[theirs][0] += ours == theirs
        right[theirs][1] += 1
    counts = ",".join(f"{name}={hits}/{count}" for name, (hits, count) in right.items())
    total = sum(hits for hits, _ in right.values())
    return Score("accuracy", total / max(1, len(references)), f"n:{len(references)}|right:{counts}")


def word_scores(hypotheses: Sequence[str], references: Sequence[str]) -> list[Score]:
    """Return the recall and the precision of words, in any order.

    For texts that are too short for BLEU's sequences of four words.
    """
    found, expected, right = 0, 0, 0
    for ours, theirs in zip(hypotheses, references, strict=True):
        words = [Counter(WORD.findall(text.lower())) for text in (ours, theirs)]
        found, expected = found + words[0].total(), expected + words[1].total()
        right += (words[0] & words[1]).total()
    signature = f"n:{len(references)}|words:{expected}|case:lower|order:any"
    return [
        Score("word_recall", right / max(1, expected), signature),
        Score("word_precision", right / max(1, found), signature),
    ]
