"""The compiler, as the list of its passes: a program, a vocabulary and a length become an ordinary model.

build       the graph as s-ops with domains, tables and layers; collects every reason against compiling
lower       outputs first: slots of the residual stream, heads, neurons
assemble    the weights
verify      compares the model with the interpreter
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from allyouneed.errors import ConfigError
from allyouneed.rasp.atoms import Atom, shortened
from allyouneed.rasp.compiler.assemble import assemble
from allyouneed.rasp.compiler.build import build
from allyouneed.rasp.compiler.compiled import CompiledProgram
from allyouneed.rasp.compiler.domains import LARGEST, Bounds
from allyouneed.rasp.compiler.lowering import Network, lower
from allyouneed.rasp.compiler.refusal import CannotCompile, Obstacle
from allyouneed.rasp.compiler.report import report
from allyouneed.rasp.compiler.schedule import ProgramIR
from allyouneed.rasp.compiler.verify import verify
from allyouneed.rasp.graph import Node, SOp

LONGEST = 2048


def compile_rasp(
    outputs: SOp | Mapping[str, SOp],
    vocabulary: Sequence[Atom],
    length: int,
    *,
    causal: bool = False,
    verified: bool = True,
    names: Mapping[Node, str] | None = None,
) -> CompiledProgram:
    """Return a model whose forward pass computes the program for every input over the vocabulary up to a length.

    `causal`: compile into a decoder, in which every selector selects among the positions up to the query's own.
    `names`: names of nodes for the report. Raise CannotCompile with every reason, or NotExact with the first input on
    which the model differs from the interpreter.
    """
    named = {"output": outputs} if isinstance(outputs, SOp) else dict(outputs)
    compiled, _, _ = run_passes(named, vocabulary, length, causal, names)
    return replace(compiled, verified=verify(compiled, named)) if verified else compiled


def run_passes(
    outputs: Mapping[str, SOp],
    vocabulary: Sequence[Atom],
    length: int,
    causal: bool = False,
    names: Mapping[Node, str] | None = None,
) -> tuple[CompiledProgram, ProgramIR, Network]:
    """Run all passes except the last, and return the intermediate results too."""
    _check(outputs, vocabulary, length)
    tokens = tuple(sorted(vocabulary, key=str))  # the order of tokenizers
    program = build(outputs, tokens, Bounds(length, causal), names)
    try:
        network = lower(program)
    except Obstacle as reason:  # a function of a mean, known only once its readers are
        raise CannotCompile([str(reason)]) from None
    model, places = assemble(program, network)
    return CompiledProgram(model, tokens, length, causal, tuple(places), report(network, model)), program, network


def _check(outputs: Mapping[str, SOp], vocabulary: Sequence[Atom], length: int) -> None:
    if not outputs:
        raise ConfigError("compile: no outputs; pass at least one s-op")
    if not vocabulary:
        raise ConfigError("compile: the vocabulary is empty; list the tokens of the inputs")
    if len(set(vocabulary)) < len(vocabulary):
        raise ConfigError(f"compile: the vocabulary {list(vocabulary)!r} contains a token twice")
    wrong = [token for token in vocabulary if not isinstance(token, str) and not abs(token) <= LARGEST]
    if wrong:
        raise CannotCompile([f"the token {shortened(token, 40)} is not a number up to {LARGEST:,}" for token in wrong])
    if not 1 <= length <= LONGEST:
        raise ConfigError(f"compile: length {length}: should be 1 to {LONGEST:,} tokens")
