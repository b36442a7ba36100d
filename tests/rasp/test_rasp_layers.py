"""Layers and heads against the counts published for the language's own examples, and by definition."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.rasp import api
from allyouneed.rasp.graph import Aggregate, Select, Selector, in_order
from allyouneed.rasp.layers import depths, schedule
from allyouneed.rasp.loading import parse_program, read_program

pytestmark = pytest.mark.no_shapes  # no tensors here
FOLDER = Path(__file__).parents[2] / "recipes" / "rasp"

# With a beginning-of-sequence token at position 0, which nothing else selects, one head counts.
BOS = """
def count_bos(sel) {
    return 1 / aggregate(sel or select(indices, 0, ==), indicator(indices == 0)) - 1;
}
def sort_bos(seq, key) {
    before = select(key, key, <) or (select(key, key, ==) and select(indices, indices, <));
    place = count_bos(before);
    return aggregate(select(place, indices, ==), seq);
}
histogram = count_bos(select(tokens, tokens, ==));
again = count_bos(select(tokens, tokens, ==) and select(indices, indices, <)) > 0;
double = count_bos(select(histogram, histogram, ==) and select(again, False, ==));
sorted = sort_bos(tokens, tokens);
frequent = sort_bos("-" if again else tokens, 1000 if again else -histogram);
"""
# Digits are aligned by weight. Sums below nine stop a carry, so positions that see equally many of them form one run.
ADDITION = """
digit = {"0":0, "1":1, "2":2, "3":3, "4":4, "5":5, "6":6, "7":7, "8":8, "9":9, "+":0}[tokens];
plus = aggregate(select(tokens, "+", ==), indices);
first = aggregate(select(indices + length - plus, indices, ==), digit);
total = first + (digit if indices > plus else 0);
stops = round(indices * aggregate(select(indices, indices, <), indicator(total < 9)));
run = select(indices, indices, >) and select(stops, stops, ==);
carries = total > 9 or (total == 9 and aggregate(run, indicator(total > 9)) > 0);
comes = aggregate(select(indices, indices + 1, ==), indicator(carries));
sum = (total + comes) % 10;
"""
PUBLISHED = {
    "length": ("x = length;", [1]),
    "reverse": ("x = aggregate(select(indices, length - 1 - indices, ==), tokens);", [1, 1]),
    "hist_nobos": ("x = selector_width(select(tokens, tokens, ==));", [2]),
    "sort": ("x = sort(tokens, tokens);", [2, 1]),
    "hist_bos": (f"{BOS} x = histogram;", [1]),
    "sort_bos": (f"{BOS} x = sorted;", [1, 1]),
    "hist2_bos": (f"{BOS} x = double;", [2, 1]),
    "sort_by_most_freq": (f"{BOS} x = frequent;", [2, 1, 1]),
    "longsum": (f"{ADDITION} x = sum;", [2, 1, 1, 1, 1]),
}
ZOO = {
    "reverse": [1, 1],
    "histogram": [2],
    "sort": [2, 1],
    "dyck1": [1, 1],
    "dyck2": [1, 2, 1, 1],
    "long_addition": [2, 1, 2, 1],  # one layer fewer than published: there, a last layer moves the carries one place
    "caesar": [],
    "pair_balance": [1],
    "sort_by_frequency": [2, 2, 1],
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    text, heads = PUBLISHED[name]
    assert schedule([parse_program(text).sop("x")]).heads == heads


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name):
    assert schedule([read_program(FOLDER / f"{name}.rasp").sop()]).heads == ZOO[name]


def test_the_counted_programs_compute_what_their_names_say():
    values = {name: parse_program(text).sop("x") for name, (text, _) in PUBLISHED.items()}
    assert values["hist_bos"]("§hello")[1:] == [1, 1, 2, 2, 1]
    assert values["hist2_bos"]("§hello")[1:] == [3, 3, 1, 1, 3]
    assert values["longsum"]("95+7") == [0, 1, 0, 2]
    assert values["longsum"]("058+032") == [0, 0, 0, 0, 0, 9, 0]


def test_the_text_of_a_schedule():
    assert str(schedule([api.length])) == "1 layer; heads 1"
    assert str(schedule([api.tokens])) == "0 layers"
    assert str(schedule([parse_program("x = sort(tokens, tokens);").sop()])) == "2 layers; heads 2, 1"


def test_a_selector_written_twice_is_two_heads_and_shared_is_one():
    value = api.indicator(api.tokens == "a")
    once = api.select(api.indices, api.indices, "<=")
    other = api.select(api.indices, api.indices, "<=")
    assert schedule([api.aggregate(once, value) + api.aggregate(once, api.indices)]).heads == [1]
    assert schedule([api.aggregate(once, value) + api.aggregate(other, api.indices)]).heads == [2]


def test_a_selector_alone_is_a_head():
    plan = schedule([api.select(api.tokens, api.tokens, "==")])
    assert plan.heads == [1]
    assert plan.layers[1].heads[0].aggregates == []


@given(st.lists(st.sampled_from(["+", "head", "late", "both"]), max_size=12))
def test_depth_equals_its_definition_and_nodes_are_in_their_layer(steps):
    sops = [api.tokens_int, api.indices]
    for step in steps:
        last, older = sops[-1], sops[len(sops) // 2]
        selector = api.select(last, older, "==")
        made = {
            "+": lambda last=last, older=older: last + older,
            "head": lambda selector=selector, older=older: api.aggregate(selector, older),
            "late": lambda last=last: api.aggregate(api.full_s, last),
            "both": lambda selector=selector, last=last: api.aggregate(selector & ~api.full_s, last),
        }
        sops.append(made[step]())
    root = sops[-1]
    plan = schedule([root])
    depth = depths([root])
    for node in in_order([root]):
        if isinstance(node, Aggregate):
            assert depth[node] == max(depth[node.selector], depth[node.value] + 1)
            (head,) = (one for one in plan.layers[depth[node]].heads if one.selector is node.selector)
            assert any(one is node for one in head.aggregates)
        elif isinstance(node, Select):
            assert depth[node] == 1 + max(depth[node.keys], depth[node.queries])
        else:
            assert depth[node] == max((depth[part] for part in node.parts), default=0)
            assert isinstance(node, Selector) or any(one is node for one in plan.layers[depth[node]].elementwise)
    assert len(plan.heads) == max(depth.values())
