"""How many layers and heads a program takes, as its authors count them: the measure for a compiler.

    base s-op, constant    0
    elementwise            the latest of what it is computed from: a feed-forward layer follows every attention layer
    select                 1 + the later of keys and queries; and, or, not: the latest of their operands
    aggregate              its selector's, but at least 1 + its value's

Whatever can be computed is computed at once (greedily, in the earliest layer). All aggregates of a layer that read
through one selector share a head, so a layer has as many heads as its aggregates have selectors. Selectors are told
apart as they were written: the same `select` written twice is two heads.

Paper: Weiss, Goldberg and Yahav 2021, arXiv:2106.06981, section 4.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from allyouneed.rasp.graph import Aggregate, Node, Select, Selector, SOp, in_order


@dataclass(eq=False)
class ScheduledHead:
    """A selector, and what is read through it in one layer."""

    selector: Selector
    aggregates: list[Aggregate] = field(default_factory=list)


@dataclass(eq=False)
class ScheduledLayer:
    """Attention, then what is computed at every position by itself. Layer 0 has no attention."""

    heads: list[ScheduledHead] = field(default_factory=list)
    elementwise: list[SOp] = field(default_factory=list)  # base s-ops too, in layer 0


@dataclass(eq=False)
class Schedule:
    """Every s-op of a program in its layer, each after what it is computed from."""

    layers: list[ScheduledLayer]  # the first is layer 0
    depth: dict[Node, int]

    @property
    def heads(self) -> list[int]:
        """In each layer, from layer 1 on."""
        return [len(layer.heads) for layer in self.layers[1:]]

    def __str__(self) -> str:
        """2 layers; heads 1, 1"""
        many = "layer" if len(self.heads) == 1 else "layers"
        return f"{len(self.heads)} {many}; heads {', '.join(map(str, self.heads))}" if self.heads else "0 layers"


def depths(roots: Iterable[Node]) -> dict[Node, int]:
    """The first layer in which each node can be there."""
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
    """Every s-op in the earliest layer. A selector that is itself wanted is a head through which nothing is read."""
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
