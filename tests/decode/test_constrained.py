"""Constrained search against exhaustive search, and its contract: batches, overlaps, repeated tokens, prefixes."""

from itertools import pairwise

import pytest
import torch
from decode_models import KINDS, exhaustive, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from test_beam import assert_same, some_sources

from allyouneed.decode import SearchConfig, search
from allyouneed.decode.constrained import choose_from_banks
from allyouneed.decode.phrases import START, Phrase, TokenConstraint, automaton
from allyouneed.text.specials import EOS

VOCABULARY = 7
WORDS = st.integers(EOS + 1, VOCABULARY - 1)
# Short phrases of few tokens overlap, repeat and contain each other.
VARIANT = st.lists(WORDS, min_size=1, max_size=2).map(tuple)
PHRASE = st.builds(Phrase, st.lists(VARIANT, min_size=1, max_size=2).map(tuple), st.integers(1, 2), st.booleans())
SOME = st.lists(PHRASE, min_size=1, max_size=2).map(tuple)


def occurrences(ids: list[int], phrase: Phrase, begins_word: list[bool]) -> int:
    """Return how often a phrase occurs, without overlaps, from the left."""
    count, place, tokens = 0, 0, [START, *ids, EOS]
    while place < len(tokens):
        ends = [place + len(one) for one in phrase.variants if tuple(tokens[place : place + len(one)]) == one]
        ends = [end for end in ends if not phrase.whole or begins_word[tokens[end]]]
        count += bool(ends)
        place = min(ends) if ends else place + 1
    return count


def meets(ids: list[int], phrases: tuple[Phrase, ...], begins_word: list[bool]) -> bool:
    return all(occurrences(ids, phrase, begins_word) >= phrase.count for phrase in phrases)


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    phrases=st.tuples(SOME, SOME),
    begins=st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY),
    alpha=st.sampled_from([0.0, 0.6, 1.2]),
)
def test_a_beam_of_all_hypotheses_is_exhaustive_search(kind, seed, phrases, begins, alpha):
    torch.manual_seed(seed)
    model, longest = make_model(kind, VOCABULARY), 5
    sources = some_sources(VOCABULARY, 2)
    config = SearchConfig(beam=4**4, length_penalty=alpha, max_length=longest)
    begins[EOS] = True
    constraints = [TokenConstraint(one) for one in phrases]
    found = search(model, sources, config, constraints=constraints, begins_word_V=torch.tensor(begins))
    for source, one, ours in zip(sources, phrases, found, strict=True):
        ranked = [h for h in exhaustive(model, source, longest, alpha) if h.finished and meets(h.ids, one, begins)]
        if ranked:
            assert_same(ours, ranked[:1])
        else:
            assert not ours[0].finished


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 3),
    phrases=st.tuples(SOME, SOME, SOME),
    begins=st.lists(st.booleans(), min_size=VOCABULARY, max_size=VOCABULARY),
)
def test_small_beams_find_all_phrases_whatever_shares_the_batch(kind, seed, beam, phrases, begins):
    torch.manual_seed(seed)
    model = make_model(kind, VOCABULARY, sharpness=3.0)
    sources = some_sources(VOCABULARY, 4)
    begins[EOS], begins[3] = True, True
    prefixes = ((), (4,), (4,), (5, 6))
    given_phrases = (*phrases, ())
    constraints = [TokenConstraint(one, prefix) for one, prefix in zip(given_phrases, prefixes, strict=True)]
    config, V = SearchConfig(beam=beam, n_best=beam, max_length=24), torch.tensor(begins)
    found = search(model, sources, config, constraints=constraints, begins_word_V=V)
    for source, constraint, ours in zip(sources, constraints, found, strict=True):
        assert tuple(ours[0].ids[: len(constraint.prefix)]) == constraint.prefix
        assert meets(ours[0].ids, constraint.phrases, begins)
        (alone,) = search(model, [source], config, constraints=[constraint], begins_word_V=V)
        assert_same(alone, ours)


def test_a_forced_prefix_is_followed_by_its_best_continuation():
    torch.manual_seed(0)
    model = make_model("encoder-decoder", 6)
    source, prefix = [4, 5, EOS], (5, 3)
    config = SearchConfig(beam=4**4, length_penalty=0, max_length=3)
    ((ours,),) = search(model, [source], config, constraints=[TokenConstraint(prefix=prefix)])
    every = exhaustive(model, source, 5, 0)
    best = next(h for h in every if h.finished and tuple(h.ids[:2]) == prefix and len(h.ids) <= 4)
    assert ours.ids == best.ids


def test_an_empty_constraint_changes_nothing():
    torch.manual_seed(0)
    model = make_model("encoder-decoder", 7)
    sources = some_sources(7, 5)
    for beam in (1, 3):
        config = SearchConfig(beam=beam, max_length=8)
        assert search(model, sources, config, constraints=[TokenConstraint()] * 5) == search(model, sources, config)


def test_a_maximum_length_too_short_gives_most_of_the_phrase():
    torch.manual_seed(0)
    model = make_model("encoder-decoder", 7)
    constraint = TokenConstraint((Phrase(((4, 5, 4, 6),)),))
    ((ours,),) = search(model, [[3, EOS]], SearchConfig(max_length=3), constraints=[constraint])
    assert (ours.ids, ours.finished) == ([4, 5, 4], False)


@pytest.mark.parametrize(
    ("tokens", "left"),
    [((), 3), ((4,), 2), ((4, 4), 1), ((4, 4, 4), 1), ((4, 4, 5), 0), ((4, 5), 3), ((4, 4, 6), 3)],
)
def test_a_phrase_of_repeated_tokens_falls_back_to_its_suffix(tokens, left):
    found = automaton([(4, 4, 5)])
    state = found.first
    for token in tokens:
        state = found.next[state][found.symbols.index(token) if token in found.symbols else -1]
    assert found.left[state] == left


def test_a_variant_of_the_start_counts_only_there():
    found = automaton([(START, 6), (4, 5)])
    assert found.left[found.first] == 1
    assert found.left[0] == 2
    assert found.left[found.next[0][found.symbols.index(6)]] == 2


@given(
    inside=st.lists(VARIANT, min_size=1, max_size=4),
    first=st.lists(VARIANT, max_size=2),
    tokens=st.lists(WORDS, max_size=6),
)
def test_a_state_is_the_longest_suffix_that_begins_a_variant(inside, first, tokens):
    variants = tuple(dict.fromkeys([*inside, *((START, *one) for one in first)]))
    found, read = automaton(variants), (START, *tokens)
    state = found.next[0][found.symbols.index(START)]
    assert state == found.first
    for token in tokens:
        state = found.next[state][found.symbols.index(token) if token in found.symbols else -1]
    ends = [read[cut:] for cut in range(len(read) + 1)]
    begins = [(one, end) for one in variants for end in ends if one[: len(end)] == end and (end or one[0] != START)]
    assert found.left[state] == min(len(one) - len(end) for one, end in begins)


def test_many_variants_take_linear_time():
    """Minutes if it were not, for a term of 1,000 targets in a request."""
    variants = tuple(tuple((number >> bit & 1) + 4 + bit for bit in range(12)) for number in range(1000))
    found = automaton(variants)
    assert len(found.left) == len({one[:length] for one in variants for length in range(13)})
    assert (found.left[0], min(found.left)) == (12, 0)


def test_banks_take_turns():
    logprob = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, float("-inf")]])
    lacks = torch.tensor([[2, 2, 1, 0, 0, 0]])
    chosen = choose_from_banks(logprob, lacks, 6)[0].tolist()
    assert chosen == [3, 2, 0, 4, 1, 5]
    assert all(one != two for one, two in pairwise(chosen))
