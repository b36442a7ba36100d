"""Which of two translations of different lengths is better? A sum of log-probabilities always prefers the shorter one.

    score(Y) = log P(Y | X) / lp(Y),    lp(Y) = ((5 + |Y|) / 6)^alpha

Paper: Wu et al. 2016, arXiv:1609.08144, equation 14; Vaswani et al. 2017, section 6.1, leave out its coverage penalty.
|Y| counts EOS, as in the code of the latter's authors.
"""


def length_penalty(length: int, alpha: float) -> float:
    """lp(Y) for |Y| = `length`."""
    return float(((5 + length) / 6) ** alpha)
