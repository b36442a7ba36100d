"""Helpers of `test_settings.py`: other values for every field of a config, and fingerprints of what a config builds."""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from allyouneed.config import Config, parse
from allyouneed.errors import ConfigError
from allyouneed.training.effects import ineffective_setting

Settings = dict[str, Any]
Path = tuple[str | int, ...]


def dead_settings(
    config: Config, fingerprint: Callable[[Config], object], chosen: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """Return the chosen settings whose other values are accepted and change nothing in the fingerprint."""
    tree, before = config.model_dump(mode="json"), fingerprint(config)
    dead = []
    for path, values in _leaves(config):
        if not chosen(".".join(map(str, path))):
            continue
        accepted = [other for value in values if (other := _parsed(type(config), _with(tree, path, value))) is not None]
        if accepted and all(_fingerprint(fingerprint, other) == before for other in accepted):
            dead.append(".".join(map(str, path)))
    return dead


def _fingerprint(fingerprint: Callable[[Config], object], config: Config) -> object:
    try:
        return fingerprint(config)
    except ConfigError as error:  # refused when it is built
        return str(error)


def _parsed(kind: type[Config], tree: Settings) -> Config | None:
    try:
        config = parse(kind, tree)
    except ConfigError:
        return None
    return config if ineffective_setting(config) is None else None


def _with(tree: Any, path: Path, value: object) -> Any:
    if not path:
        return value
    if isinstance(tree, list):
        return [_with(item, path[1:], value) if place == path[0] else item for place, item in enumerate(tree)]
    return {**tree, path[0]: _with(tree[path[0]], path[1:], value)}


def _leaves(config: BaseModel, path: Path = ()) -> Iterator[tuple[Path, list[object]]]:
    """Yield every setting of a config, and of the configs in it, with other values to try."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if name == "type":
            continue
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*path, name))
        elif isinstance(value, list | tuple) and value and isinstance(value[0], BaseModel):
            yield from _leaves(value[0], (*path, name, 0))
        else:
            yield (*path, name), [other for other in _others(value, field.annotation) if other != value]


def _others(value: object, annotation: Any) -> list[object]:
    literals = list(_literals(annotation))
    if literals:
        return [*literals]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + 2, max(value - 1, 0), 2 * value, value // 2, 6]
    if isinstance(value, float):
        return [value / 2, 2 * value, value + 0.25, 0.9]
    if isinstance(value, list | tuple):
        return [[*value, *value[-1:]], list(value[:-1]), list(reversed(value)), *_changed_items(list(value))]
    return [True, 1, 2, 3, 0.5, 1.5] if value is None else []  # free text has no other value that is known to be valid


def _changed_items(value: list[Any]) -> Iterator[list[object]]:
    for place, item in enumerate(value):
        if isinstance(item, int | float):
            yield [*value[:place], item + 1, *value[place + 1 :]]


def _literals(annotation: Any) -> Iterator[object]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for part in typing.get_args(annotation):
            yield from _literals(part)


def module_fingerprint(module: nn.Module, attributes: bool = False) -> object:
    """Return what a module is made of: its parts and their tensors (shapes, and values if any).

    `attributes`: their plain attributes too, for modules that cannot be run. A setting that a module merely stores
    then counts as one with an effect.
    """
    numbers: dict[Tensor, int] = {}  # a tensor that is used twice (tied) has one number
    shared = [numbers.setdefault(tensor, len(numbers)) for _, tensor in module.named_parameters(remove_duplicate=False)]
    found: list[object] = [shared]
    for path, part in module.named_modules():
        tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        stored = sorted(vars(part).items()) if attributes else []
        plain = [(name, _plain(value)) for name, value in stored if not name.startswith("__")]
        found.append((path, type(part).__name__, [(name, _tensor(tensor)) for name, tensor in tensors], plain))
    return found


def _tensor(tensor: Tensor) -> object:
    return tuple(tensor.shape), None if tensor.is_meta else tensor.detach().flatten().tolist()


def _plain(value: object) -> object:
    """Return the value of an attribute. Configs do not count: a setting that is only kept has no effect."""
    if isinstance(value, bool | int | float | str | torch.dtype | None):
        return value
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, _plain(getattr(value, each.name))) for each in dataclasses.fields(value)]
    if isinstance(value, Mapping) and not isinstance(value, nn.Module):
        return [(str(name), _plain(item)) for name, item in value.items() if not isinstance(item, nn.Module | Tensor)]
    return getattr(value, "__qualname__", type(value).__name__)
