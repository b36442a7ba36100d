"""A compiled program: an ordinary model, and the meaning of its ids and logits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from allyouneed.errors import DataError
from allyouneed.models.base import Model
from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.compiler.assemble import FIRST, Output
from allyouneed.rasp.compiler.report import CompilationReport
from allyouneed.rasp.graph import Input
from allyouneed.text.specials import BOS, PAD
from allyouneed.words import counted


@dataclass(frozen=True)
class Verification:
    """The result of a successful comparison with the interpreter."""

    inputs: int
    exhaustive: bool
    undefined: int  # inputs on which the program itself fails
    failure: str = ""  # the error on the first of them

    def __str__(self) -> str:
        which = "all possible" if self.exhaustive else "edge cases and random inputs"
        defined = self.inputs - self.undefined
        text = f"equal to the interpreter on {counted(defined, 'input')} ({which})"
        if self.undefined:
            text += f"; on {self.undefined:,} others the program itself fails, and the output is undefined: "
            text += self.failure
        return text


@dataclass(frozen=True)
class CompiledProgram:
    """A model with its vocabulary, length and outputs."""

    model: Model
    vocabulary: tuple[Atom, ...]
    length: int
    causal: bool
    outputs: tuple[Output, ...]
    report: CompilationReport
    verified: Verification | None = None  # None: not compared

    def encode(self, inputs: Sequence[Input]) -> tuple[Tensor, Tensor]:
        """Return ids, BOS first and padded at the end, and the mask of real positions."""
        ids = {token: number for number, token in enumerate(self.vocabulary, start=FIRST)}
        rows = []
        for number, given in enumerate(inputs):
            unknown = sorted({repr(atom) for atom in given if atom not in ids})
            if unknown:
                raise DataError(f"input {number}: {', '.join(unknown)} is not in the program's vocabulary")
            if not 1 <= len(given) <= self.length:
                raise DataError(f"input {number}: {len(given)} tokens; the program was compiled for 1 to {self.length}")
            rows.append([BOS, *(ids[atom] for atom in given)])
        longest = max(map(len, rows))
        ids_BS = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        return ids_BS, ids_BS != PAD

    @torch.inference_mode()
    def logits(self, inputs: Sequence[Input]) -> Tensor:
        """Return the logits at every position except BOS."""
        ids_BS, mask_BS = self.encode(inputs)
        if self.causal:
            logits_BSV, _ = self.model.step(ids_BS, self.model.start(), mask_BS)
        else:
            logits_BSV = self.model.classify(ids_BS, mask_BS)
        return logits_BSV[:, 1:]

    def run(self, inputs: Sequence[Input]) -> list[dict[str, list[Atom]]]:
        """Return the named outputs of the program for a batch of inputs."""
        logits_BSV = self.logits(inputs)
        found: list[dict[str, list[Atom]]] = [{} for _ in inputs]
        for output in self.outputs:
            chosen = logits_BSV[..., output.begin : output.begin + len(output.values)].argmax(dim=-1).tolist()
            for result, row, given in zip(found, chosen, inputs, strict=True):
                result[output.name] = [output.values[number] for number in row[: len(given)]]
        return found

    def __call__(self, given: Input) -> list[Atom] | Mapping[str, list[Atom]]:
        """Return the output for one input; a dict by name if there are several outputs."""
        (result,) = self.run([given])
        return next(iter(result.values())) if len(result) == 1 else result
