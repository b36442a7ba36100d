"""Several model folders as one model: an ensemble."""

from collections.abc import Sequence
from dataclasses import replace

from allyouneed.decode.ensemble import Ensemble
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.text.tokenizer import Tokenizer


def ensemble_of(bundles: Sequence[Bundle]) -> Bundle:
    """Return the ensemble of loaded models, with the settings of the first. Its shortlist is left out.

    Raise ConfigError if a model does not translate, or if its ids are not those of the first.
    """
    first, *others = bundles
    for bundle in bundles:
        if bundle.codec.source is None or bundle.codec.target is None or bundle.codec.classes is not None:
            raise ConfigError(f"{bundle.path}: does not translate; an ensemble needs models that do")
    for bundle in others:
        for side, ours, own in zip(("source", "target"), first.codec.both(), bundle.codec.both(), strict=True):
            if not _same_ids(ours, own):
                raise ConfigError(
                    f"{bundle.path}: its {side} vocabulary is not that of {first.path}; an ensemble needs models with "
                    "the same tokenizers: trained on the same data, or with `train --from`"
                )
        if bundle.codec.framing != first.codec.framing:
            raise ConfigError(f"{bundle.path}: its sources begin or end with other tokens than those of {first.path}")
    try:
        model = Ensemble([bundle.model for bundle in bundles])
    except ConfigError as error:
        raise ConfigError(f"{' and '.join(str(bundle.path) for bundle in bundles)}: {error}") from None
    return replace(first, model=model, shortlist=None)


def _same_ids(ours: Tokenizer, own: Tokenizer) -> bool:
    return ours is own or ours.vocabulary == own.vocabulary
