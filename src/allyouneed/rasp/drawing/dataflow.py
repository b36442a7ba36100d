"""What a drawing of a program shows: the values of its s-ops, a number for each row, and where each row comes from.

Constants are hidden, and so are unnamed elementwise results with a single elementwise consumer: they are part of that
consumer's title.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.drawing.canvas import printable
from allyouneed.rasp.errors import RaspLimitError
from allyouneed.rasp.evaluate import Evaluation
from allyouneed.rasp.graph import Combined, Constant, Indices, Input, Map, Node, Select, Selector, SOp, Tokens, in_order
from allyouneed.rasp.labels import cut, title
from allyouneed.rasp.layers import Schedule, schedule

LONGEST: Final = 40  # positions
MOST: Final = 400  # rows of values, and comparisons of all heads
TITLE: Final = 44  # columns of a title


class Dataflow:
    """The values, row numbers and row sources of one program on one input."""

    def __init__(self, root: SOp | Selector, given: Input, names: Mapping[Node, str]) -> None:
        self.root, self.given, self.names = root, given, names
        self.run = Evaluation(given)
        self.length = len(self.run.given)
        if self.length > LONGEST:
            raise RaspLimitError(
                f"draw: an input of {self.length} elements; at most {LONGEST} can be drawn: shorten the input"
            )
        self.schedule: Schedule = schedule([root])
        inputs = self.schedule.layers[0].elementwise
        # tokens, indices, others
        inputs.sort(key=lambda sop: 0 if isinstance(sop, Tokens) else 1 if isinstance(sop, Indices) else 2)
        self.run.compute(root)
        self.hidden = self._find_hidden()
        self.number: dict[Node, int] = {}
        for layer in self.schedule.layers:
            for sop in (*(one for head in layer.heads for one in head.aggregates), *layer.elementwise):
                if sop not in self.hidden:
                    self.number[sop] = len(self.number) + 1
        heads = [head for layer in self.schedule.layers for head in layer.heads]
        size = len(self.number) + sum(len(comparisons(head.selector)) for head in heads[:MOST])
        if max(size, len(heads)) > MOST:
            raise RaspLimitError(
                f"draw: more than {MOST} rows of values and comparisons; draw a smaller part of the program"
            )

    def _find_hidden(self) -> set[Node]:
        nodes = in_order([self.root])
        consumers: dict[Node, list[Node]] = {node: [] for node in nodes}
        for node in nodes:
            for part in node.parts:
                consumers[part].append(node)
        hidden: set[Node] = {node for node in nodes if isinstance(node, Constant) and node is not self.root}
        for node in nodes:
            consumer = consumers[node][0] if len(consumers[node]) == 1 else None
            # A name that a loop reassigns belongs to the last value.
            minor = node not in self.names or (consumer is not None and self.names[node] == self.names.get(consumer))
            if isinstance(node, Map) and isinstance(consumer, Map) and minor:
                hidden.add(node)
        return hidden

    def values(self, sop: SOp) -> list[Atom]:
        return self.run.sequence(sop)

    def title(self, node: Node) -> str:
        return printable(title(node, self.names))

    def label(self, node: Node) -> str:
        """Return a label such as `tokens #1`."""
        number = f" #{self.number[node]}" if node in self.number else ""
        return cut(self.title(node), TITLE) + number

    def sources(self, sop: SOp) -> str:
        """Return the source rows of an s-op, such as `from #1, #3`."""
        found: Counter[int] = Counter()
        waiting = list(sop.parts)
        seen: set[Node] = set()
        while waiting:
            part = waiting.pop()
            if part in self.number:
                found[self.number[part]] += 1
            elif part not in seen:
                seen.add(part)
                waiting += part.parts
        return f"from {', '.join(f'#{number}' for number in sorted(found))}" if found else ""


def comparisons(selector: Selector) -> list[Select]:
    """Return the comparisons that a selector combines."""
    seen: dict[Node, None] = {}
    waiting: list[Node] = [selector]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen[node] = None
            waiting += reversed(node.parts) if isinstance(node, Combined) else ()
    return [node for node in seen if isinstance(node, Select)]
