"""What a program means under a causal mask: every selector selects among the positions up to the query's own.

    S  becomes  S and select(indices, indices, <=)        so length is i + 1, a mean is one of the past, ...
"""

from dataclasses import replace

from allyouneed.rasp.graph import Aggregate, Combined, Indices, Map, Node, Select, Selector, SOp, in_order

VISIBLE = Select(Indices(), Indices(), "<=")


def seen_causally(sop: SOp) -> SOp:
    """The program whose value is that of this one under a causal mask."""
    new: dict[int, Node] = {}
    for node in in_order([sop]):
        match node:
            case Map(_, arguments):
                new[id(node)] = replace(node, arguments=tuple(new[id(argument)] for argument in arguments))
            case Aggregate(selector, value):
                seen = Combined("and", (_selector(new[id(selector)]), VISIBLE))
                new[id(node)] = replace(node, selector=seen, value=new[id(value)])
            case Select(keys, queries):
                new[id(node)] = replace(node, keys=new[id(keys)], queries=new[id(queries)])
            case Combined(_, operands):
                new[id(node)] = replace(node, operands=tuple(new[id(operand)] for operand in operands))
            case _:
                new[id(node)] = node
    result = new[id(sop)]
    assert isinstance(result, SOp)
    return result


def _selector(node: Node) -> Selector:
    assert isinstance(node, Selector)
    return node
