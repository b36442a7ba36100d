"""Length penalty: a sum of log-probabilities always prefers the shorter of two translations.

    score(Y) = log P(Y | X) / lp(Y),    lp(Y) = ((5 + |Y|) / 6)^alpha

Paper: Wu et al. 2016, arXiv:1609.08144, equation 14; Vaswani et al. 2017, section 6.1, omit its coverage penalty.
|Y| counts EOS, as in the code of Vaswani et al.
"""


def length_penalty(length: int, alpha: float) -> float:
    """Return lp(Y) for |Y| = `length`."""
    return float(((5 + length) / 6) ** alpha)
