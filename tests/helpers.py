"""Shared by several tests: data folders, the shape checker, comparisons of outputs and gradients."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from allyouneed import cli

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = str(ROOT / "src" / "allyouneed") + os.sep
SUFFIX = re.compile(r"^[a-z]\w*?_([A-Z0-9]*[A-Z][A-Z0-9]*)$")
DIGITS = {str(digit): digit for digit in range(10)}
# Codes and their suffixed names, by package and identity. The hash of a code is slow; its id is valid while it lives.
KNOWN: dict[str, dict[int, tuple[CodeType, Sequence[tuple[str, str]]]]] = {}


def shared_data(*parts: str) -> Path:
    """Return a file or folder of the shared data (ALLYOUNEED_DATA, or ../shared/data); skip the test without it."""
    folder = Path(os.environ.get("ALLYOUNEED_DATA", ROOT.parent / "shared" / "data"))
    path = folder.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path}; set ALLYOUNEED_DATA to the folder that holds {'/'.join(parts) or 'the data'}")
    return path


class CommandRunner:
    """Runs a command in this process with text on stdin; returns its status, stdout and stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        self.capsys, self.monkeypatch, self.file = capsys, monkeypatch, file

    def __call__(self, *arguments: object, text: str = "") -> tuple[int, str, str]:
        self.capsys.readouterr()
        self.file.write_text(text)
        with self.file.open() as stdin:
            self.monkeypatch.setattr("sys.stdin", stdin)
            status = cli.run([str(argument) for argument in arguments])
        return status, *self.capsys.readouterr()


class ShapeChecker:
    """The function `profile`, for `sys.setprofile`, checks names like `x_BTD` against the tensors they hold.

    Whenever a function of the package returns, each of its local tensors with a suffix must have one axis for each
    letter. A letter is one size within the frame, a digit is that size, and a size of 1 broadcasts. Wrong names are
    collected, not raised: an exception in a profile function would switch the checker off, and the code under test
    could catch it.
    """

    def __init__(self, package: str = PACKAGE) -> None:
        self.wrong_names: list[str] = []
        known = KNOWN.setdefault(package, {})
        find = known.get

        def profile(frame: FrameType, event: str, _: Any) -> None:
            if event != "return":
                return
            code = frame.f_code
            if (found := find(id(code))) is None:
                found = known[id(code)] = code, _suffixed(code, package)
            if found[1]:
                self._check(frame, found[1])

        self.profile = profile  # a plain function: it is called for every call and every return

    def _check(self, frame: FrameType, names: Sequence[tuple[str, str]]) -> None:
        sizes = dict(DIGITS)
        values = frame.f_locals
        for name, letters in names:
            value = values.get(name)
            if not isinstance(value, Tensor):
                continue
            shape = value.shape
            if len(shape) != len(letters):
                self._add(frame, name, value, f"not of {len(letters)} axes")
                continue
            for letter, size in zip(letters, shape, strict=True):
                expected = sizes.get(letter, 1)
                if size == expected:
                    continue
                if 1 not in (size, expected):
                    self._add(frame, name, value, f"but {letter} = {expected}")
                elif not letter.isdigit():
                    sizes[letter] = max(size, expected) if 0 not in (size, expected) else 0

    def _add(self, frame: FrameType, name: str, value: Tensor, problem: str) -> None:
        self.wrong_names.append(f"{frame.f_code.co_qualname}: {name} is {tuple(value.shape)}, {problem}")


def _suffixed(code: CodeType, package: str) -> tuple[tuple[str, str], ...]:
    """Return the local names of a function that carry a shape, or nothing outside the package."""
    if not code.co_filename.startswith(package):
        return ()
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return tuple((name, match[1]) for name in dict.fromkeys(names) if (match := SUFFIX.match(name)))


def file_hash(path: Path) -> str:
    """Return the sha256 of a file. Comparing hashes keeps the message of a failed assertion short."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors_of(node: Any) -> Iterator[Tensor]:
    """Yield every tensor in a nested state; of a growable buffer only its filled part."""
    if isinstance(node, Tensor):
        yield node
    elif hasattr(node, "tensor"):
        yield node.tensor
    elif hasattr(node, "__dataclass_fields__"):
        for name in node.__dataclass_fields__:
            yield from tensors_of(getattr(node, name))
    elif isinstance(node, list | tuple):
        for item in node:
            yield from tensors_of(item)


def assert_same_gradients(ours: Tensor, theirs: Tensor, inputs: Iterable[Tensor]) -> None:
    """Assert that two outputs are equal, and so are their gradients (of a random weighting) for each input."""
    torch.testing.assert_close(ours, theirs)
    noise = torch.randn_like(theirs)
    inputs = list(inputs)
    first = torch.autograd.grad(ours, inputs, noise, allow_unused=True, retain_graph=True)
    second = torch.autograd.grad(theirs, inputs, noise, allow_unused=True, retain_graph=True)
    for one, two in zip(first, second, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            torch.testing.assert_close(one, two)
