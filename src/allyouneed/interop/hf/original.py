"""The architecture of an export: that of the original if the model was imported, or the one that fits.

The config of an imported model is used as it is if an import reads the model's settings from it. Otherwise the settings
are laid over it. So fields that do not concern us stay, and an architecture that only imports can name has its fields.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.architectures import ARCHITECTURES
from allyouneed.interop.hf.architectures.base import Architecture, epsilon_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.text.origin import Origin


@dataclass(frozen=True)
class Original:
    """The architecture of an imported model, and the config of its export."""

    architecture: Architecture
    settings: Tree


def original_target(origin: Origin, config: Any, classes: Sequence[str] | None) -> Original | None:
    """Return what an imported model is exported as; None if its architecture cannot express the model any longer."""
    architecture = ARCHITECTURES.get(str(origin.config.get("model_type")))
    if architecture is None:
        return None
    for name in _names(architecture, origin, config, classes):
        for settings in _candidates(architecture, origin.config, config):
            tree = {**settings, "architectures": [name]}
            try:
                require_readable(architecture, name, tree, config)
            except ConfigError:
                continue
            return Original(architecture, tree | _labels(origin.config, config, classes))
    return None


def _names(architecture: Architecture, origin: Origin, config: Any, classes: Sequence[str] | None) -> list[str]:
    """Return the classes that the model may be, the original one first.

    A model that generates has its output projection, even if the original had none.
    """
    if not isinstance(config, EncoderConfig):
        return [architecture.classes[0]]
    bare = classes is not None and not classes
    named = [name for name in architecture.classes if name.endswith("Model") == bare]
    own = origin.config.get("architectures")
    return sorted(named, key=lambda name: [name] != own)


def _candidates(architecture: Architecture, original: Any, config: Any) -> Iterator[Tree]:
    if not architecture.rewritten:
        yield dict(original)
    try:
        yield {**original, **architecture.write(config)}
    except ConfigError:
        return


def _labels(original: Any, config: Any, classes: Sequence[str] | None) -> Tree:
    """Return the fields with the names of classes, if these are not the original ones."""
    if not isinstance(config, EncoderConfig) or config.tied or not classes:
        return {}
    fields = label_fields(classes)
    return {} if fields["id2label"] == original.get("id2label") else fields


def label_fields(classes: Sequence[str]) -> Tree:
    """Return the fields with the names of classes."""
    return {
        "id2label": {str(n): name for n, name in enumerate(classes)},
        "label2id": {name: n for n, name in enumerate(classes)},
    }


def require_readable(architecture: Architecture, name: str, tree: Tree, config: Any) -> None:
    """Raise ConfigError if an import would read other settings from a config than those of the model."""
    try:
        back = architecture.read(Fields(tree, "config.json"), name)
    except (FolderError, ValueError) as error:
        raise ConfigError(f"{architecture.type} of transformers cannot express it: {error}") from None
    for field, right in _plain(config).items():
        found = _plain(back).get(field)
        if found != right:
            raise ConfigError(f"model.{field}: {right}; {architecture.type} of transformers has {found}")


def _plain(config: Any) -> Tree:
    """Return settings with all defaults filled in, so that equivalent settings compare equal."""
    elsewhere = {"mean", "std"}  # of pixels: in another file
    apart = {"dropout", "output_bias", "epsilon", "mixer", "encoder_mixer", "cross"}
    tree = config.model_dump(mode="json", exclude=apart | elsewhere)
    mixers = {"mixer": config.mixer}
    if isinstance(config, EncoderDecoderConfig):
        mixers |= {"encoder_mixer": config.encoder_mixer or config.mixer, "cross": config.cross_mixer()}
    for name, found in mixers.items():
        listed = found if isinstance(found, list) else [found]
        spelled = [_spelled(mixer, config.width) for mixer in listed]
        tree[name] = spelled[0] if all(one == spelled[0] for one in spelled) else spelled
    return tree | {"epsilon": epsilon_of(config)}


def _spelled(mixer: Any, width: int) -> Tree:
    tree: Tree = mixer.model_dump(mode="json")
    if isinstance(mixer, SoftmaxConfig):
        keys, values = mixer.head_widths(width)
        tree |= {"key_heads": mixer.groups, "key_width": keys, "value_width": values}
    return tree
