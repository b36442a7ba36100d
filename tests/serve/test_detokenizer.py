"""Incremental detokenization gives the same text as detokenizing all ids at once, for any bytes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.serve.detokenizer import Detokenizer, whole_text
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import TokenizerConfig, train

TOKENIZER = train(["größer als zuvor", "größer und größer", "日本語 🙂"], TokenizerConfig(kind="bpe", size=300))
CODEC = Codec(None, TOKENIZER)
INCOMPLETE = [token for token in range(4, TOKENIZER.size) if "\N{REPLACEMENT CHARACTER}" in TOKENIZER.decode([token])]
IDS = st.lists(st.integers(4, TOKENIZER.size - 1) | st.sampled_from(INCOMPLETE), max_size=24)


@settings(max_examples=500)
@given(IDS, IDS)
def test_incremental_text_equals_whole_text(prompt: list[int], ids: list[int]) -> None:
    detokenizer = Detokenizer(CODEC, prompt)
    pieces = [detokenizer.push(token) for token in ids]
    assert whole_text(CODEC, prompt, ids) == "".join(pieces) + detokenizer.rest()


def test_text_round_trip() -> None:
    for text in ("größer und größer", "日本語 🙂 ja"):
        assert whole_text(CODEC, [], TOKENIZER.encode_batch([text])[0]) == text
