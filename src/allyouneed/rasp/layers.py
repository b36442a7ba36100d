"""The layers and heads of a program, as RASP's authors count them: the yardstick for a compiler.

    base s-op, constant    0
    elementwise            the maximum of its arguments: a feed-forward layer follows every attention layer
    select                 1 + the maximum of keys and queries; and, or, not: the maximum of their operands
    aggregate              that of its selector, but at least 1 + that of its value

Everything is computed in the earliest possible layer (greedily). All aggregates of a layer that use one selector share
a head, so a layer has as many heads as its aggregates have selectors. Selectors are distinguished as written: the same
`select` written twice is two heads.

Paper: Weiss, Goldberg and Yahav 2021, arXiv:2106.06981, section 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from allyouneed.rasp.graph import Aggregate, Node, Select, Selector, SOp, in_order


@dataclass(eq=False)
class ScheduledHead:
    """A selector, and the aggregates that use it in one layer."""

    selector: Selector
    aggregates: list[Aggregate] = field(default_factory=list)


@dataclass(eq=False)
class ScheduledLayer:
    """Attention, then the elementwise s-ops. Layer 0 has no attention."""

    heads: list[ScheduledHead] = field(default_factory=list)
    elementwise: list[SOp] = field(default_factory=list)  # in layer 0 also the base s-ops


@dataclass(eq=False)
class Schedule:
    """Every s-op of a program in its layer, after its inputs."""

    layers: list[ScheduledLayer]  # layer 0 first
    depth: dict[Node, int]

    @property
    def heads(self) -> list[int]:
        """The number of heads in each layer, starting with layer 1."""
        return [len(layer.heads) for layer in self.layers[1:]]

    def __str__(self) -> str:
        """Return a text such as `2 layers; heads 1, 1`."""
        many = "layer" if len(self.heads) == 1 else "layers"
        return f"{len(self.heads)} {many}; heads {', '.join(map(str, self.heads))}" if self.heads else "0 layers"


def depths(roots: Iterable[Node]) -> dict[Node, int]:
    """Return the earliest layer of each node."""
    depth: dict[Node, int] = {}
    for node in in_order(roots):
        own = [depth[part] for part in node.parts]
        if isinstance(node, Select):
            depth[node] = 1 + max(own)
        elif isinstance(node, Aggregate):
            depth[node] = max(depth[node.selector], 1 + depth[node.value])
        else:
            depth[node] = max(own, default=0)
    return depth


def schedule(roots: Iterable[Node]) -> Schedule:
    """Schedule every s-op in its earliest layer. A selector among the roots is a head without aggregates."""
    wanted = list(roots)
    depth = depths(wanted)
    layers = [ScheduledLayer() for _ in range(1 + max(depth.values(), default=0))]
    heads: dict[tuple[int, Selector], ScheduledHead] = {}

    def head(number: int, selector: Selector) -> ScheduledHead:
        if (number, selector) not in heads:
            heads[number, selector] = ScheduledHead(selector)
            layers[number].heads.append(heads[number, selector])
        return heads[number, selector]

    for node, number in depth.items():
        if isinstance(node, Aggregate):
            head(number, node.selector).aggregates.append(node)
        elif isinstance(node, SOp):
            layers[number].elementwise.append(node)
    for node in wanted:
        if isinstance(node, Selector):
            head(depth[node], node)
    return Schedule(layers, depth)
