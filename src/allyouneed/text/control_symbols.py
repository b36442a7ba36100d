"""Control symbols of a vocabulary: tokens that no text spells and that no decoded text shows."""

import json
from collections.abc import Sequence

from allyouneed.text.specials import SPECIALS
from allyouneed.text.tokenizer import BYTES, Tokenizer, TokenizerConfig, control_name


def leave_room(config: TokenizerConfig, symbols: int) -> TokenizerConfig:
    """Return the settings of a tokenizer that has room for control symbols."""
    least = len(SPECIALS) + (BYTES if config.kind in ("bpe", "unigram") else 0)
    return config.model_copy(update={"size": max(least, config.size - symbols)})


def with_controls(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """Return the tokenizer with further control symbols, after all other ids."""
    if not names:
        return tokenizer
    tree = json.loads(tokenizer.to_json())
    vocab, symbols = tree["model"]["vocab"], map(control_name, names)
    if isinstance(vocab, list):  # unigram: with scores
        least = min(score for _, score in vocab)
        vocab += [[symbol, least] for symbol in symbols]
    else:
        vocab |= {symbol: number for number, symbol in enumerate(symbols, start=len(vocab))}
    return Tokenizer.from_json(json.dumps(tree, ensure_ascii=False), "tokenizer")
