"""The compiler, as the list of its passes: a program, a vocabulary and a length become an ordinary model.

build       the graph as s-ops with values, tables and layers; what cannot be compiled is refused here, all at once
realise     outputs first: slots of the residual stream, heads, neurons
assemble    the weights
verify      the model against the interpreter
"""

from collections.abc import Mapping, Sequence

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.compiler.assemble import assemble
from allyouneed.rasp.compiler.build import build
from allyouneed.rasp.compiler.program import Compiled
from allyouneed.rasp.compiler.realise import realise
from allyouneed.rasp.compiler.values import Bounds
from allyouneed.rasp.graph import SOp


def compile_rasp(
    outputs: SOp | Mapping[str, SOp], vocabulary: Sequence[Atom], length: int, *, causal: bool = False
) -> Compiled:
    """A model whose forward pass computes the program for every input over the vocabulary up to that length."""
    named = {"output": outputs} if isinstance(outputs, SOp) else dict(outputs)
    program = build(named, vocabulary, Bounds(length, causal))
    network = realise(program)
    model, places = assemble(program, network)
    return Compiled(model, tuple(vocabulary), length, causal, tuple(places))
