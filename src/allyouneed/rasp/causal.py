"""A program under a causal mask: every selector selects among the positions up to the query's own.

S  becomes  S and select(indices, indices, <=)        so length is i + 1, and a mean covers earlier positions only
"""

from dataclasses import replace

from allyouneed.rasp.graph import Aggregate, Combined, Indices, Map, Select, Selector, SOp, in_order

VISIBLE = Select(Indices(), Indices(), "<=")


def seen_causally(sop: SOp) -> SOp:
    """Return the program that computes, without a mask, what this one computes under a causal mask."""
    sops: dict[int, SOp] = {}
    selectors: dict[int, Selector] = {}
    for node in in_order([sop]):
        match node:
            case Map(_, arguments):
                sops[id(node)] = replace(node, arguments=tuple(sops[id(argument)] for argument in arguments))
            case Aggregate(selector, value):
                seen = Combined("and", (selectors[id(selector)], VISIBLE))
                sops[id(node)] = replace(node, selector=seen, value=sops[id(value)])
            case Select(keys, queries):
                selectors[id(node)] = replace(node, keys=sops[id(keys)], queries=sops[id(queries)])
            case Combined(_, operands):
                selectors[id(node)] = replace(node, operands=tuple(selectors[id(operand)] for operand in operands))
            case SOp():
                sops[id(node)] = node
    return sops[id(sop)]
