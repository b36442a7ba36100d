"""How many sentences a text of an imported model has: what is longer is read in pieces (text/sentences.py).

Translators read single sentences. T5 reads its task at the beginning of a text, and BART, Pegasus and LED summarise:
they read texts as a whole. An export states what differs from that in a field of config.json, which transformers
ignores.
"""

from typing import Any, Final

from allyouneed.config import Tree
from allyouneed.text.codec import Codec

FIELD: Final = "sentences_per_text"
WHOLE: Final = 1 << 20  # more than any text has
READ_WHOLE = ("t5", "bart", "pegasus", "led")


def sentences_of(tree: Tree, kind: str) -> int | None:
    """Return the number for a config.json of this `model_type`; None: single sentences, or no translator."""
    stated: Any = tree.get(FIELD)
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
        return stated
    return WHOLE if kind in READ_WHOLE else None


def sentences_field(codec: Codec, settings: Tree, kind: str) -> Tree:
    """Return what the config.json of an export states, if an import could not know it."""
    if codec.sentences is None or codec.sentences == (sentences_of(settings, kind) or 1):
        return {}
    return {FIELD: codec.sentences}
