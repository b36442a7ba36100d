"""The special ids: the first four of every vocabulary."""

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("< pad >", "< bos >", "< eos >", "< unk >")  # their names
