"""Inspect what a model does with one text: its tokens, their probabilities, and its attention weights.

    found = inspect_text(bundle, "forty-one")
    found.outputs[0].best      # the most probable first tokens
    found.maps[0].weights_HTS  # for each head: how much the token of row T reads from the token of column S

The weights come from the mixers themselves (`maps.py`). For a model without a layer that weighs tokens, influence is
shown instead,

    w_ts = |d log P(y_t) / d x_s|,  each row divided by its sum,      x_s the embedding of token s,

which every model has. A recurrence can therefore be compared with a Transformer.
"""

from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.inspection.inspectors import ClassifierInspector, LanguageModelInspector, TranslationInspector
from allyouneed.inspection.result import Inspection

LONGEST = 256  # tokens of a text


def inspect_text(
    bundle: Bundle,
    text: str,
    target: str | None = None,
    *,
    longest: int = LONGEST,
    new_tokens: int | None = None,
    alternatives: int = 5,
) -> Inspection:
    """Run a model on a text and record what it reads and outputs.

    With a `target`, inspect that output instead of the model's own. `new_tokens` bounds the tokens that the model
    generates, `alternatives` the candidates that are listed for each.
    """
    codec = bundle.codec
    if codec.classes is not None:
        if target is not None:
            raise ConfigError("target: this model is a classifier and takes no target; leave it out")
        return ClassifierInspector(bundle, text, longest).inspect(alternatives)
    if codec.source is not None:
        return TranslationInspector(bundle, text, target, longest, new_tokens).inspect(alternatives)
    return LanguageModelInspector(bundle, text, target, longest, new_tokens).inspect(alternatives)
