"""Rows that join and leave a batch generate what `sample` and `stream` generate for each alone."""

import pytest
import torch
from decode_models import KINDS, make_model
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.decode import SampleConfig, SearchConfig, sample, score, search, stream
from allyouneed.decode.running_batch import GeneratedToken, Row, RunningBatch
from allyouneed.decode.sample import uniforms
from allyouneed.errors import DataError
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.positions import LearnedConfig
from allyouneed.text.specials import EOS

V = 9
ids = st.lists(st.integers(4, V - 1), max_size=5)
configs = st.builds(
    SampleConfig,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([None, 3]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 3),
    max_length=st.integers(1, 12),
)
requests = st.lists(
    st.tuples(st.integers(0, 5), ids, ids.map(lambda some: [*some, EOS]), configs), min_size=1, max_size=6
)


@pytest.mark.no_shapes  # hundreds of small steps
@settings(max_examples=8)
@pytest.mark.parametrize("kind", KINDS)
@given(requests=requests, leaving=st.integers(0, 5))
def test_rows_generate_what_they_generate_alone(kind, requests, leaving):
    torch.manual_seed(5)
    model = make_model(kind, V).eval()
    rows = [Row(prompt, source, config, uniforms(config.seed, 0, 0), top=2) for _, prompt, source, config in requests]
    received: dict[int, list[GeneratedToken]] = {place: [] for place in range(len(rows))}
    running = RunningBatch(model)
    for now in range(20):
        generated = []
        fresh = [row for row, (begins, *_) in zip(rows, requests, strict=True) if begins == now]
        if fresh:
            generated += running.add(fresh)
        if now == 3 and leaving < len(rows) and rows[leaving] in running.rows:
            running.remove([rows[leaving]])  # the other rows must not be affected
        if running.rows:
            generated += running.step()
        for one in generated:
            received[rows.index(one.row)].append(one)
    assert not running.rows
    for place, (_, prompt, source, config) in enumerate(requests):
        (alone,) = sample(model, [prompt], config, [source])[0]
        generated = [one.token for one in received[place] if one.token != EOS]
        if place == leaving and received[place] and received[place][-1].end is None:  # it was removed
            assert generated == alone.ids[: len(generated)]
            continue
        assert generated == alone.ids == list(stream(model, prompt, config, source))
        assert rows[place].ids == [one.token for one in received[place]]
        assert received[place][-1].end == ("stop" if alone.finished else "length")
        assert sum(one.logprob for one in received[place]) == pytest.approx(alone.logprob, abs=1e-5)
        whole = score(model, [(source, [*prompt, *(one.token for one in received[place])])], ended=False)[0]
        logprobs = whole.token_logprobs[len(prompt) :]
        assert [one.logprob for one in received[place]] == pytest.approx(logprobs, abs=1e-5)
        for one in received[place]:
            assert len(one.top) == 2
            assert one.logprob <= one.top[0][1] + 1e-9


@pytest.mark.no_shapes
@settings(max_examples=10)
@pytest.mark.parametrize("kind", [*KINDS, "fused decoder", "fused encoder-decoder"])
@given(requests=requests, pauses=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.booleans()), max_size=6))
def test_suspended_rows_generate_what_they_generate_alone(kind, requests, pauses):
    """Rows leave the batch at any time and return three steps later, with their state or without it."""
    torch.manual_seed(5)
    model = make_model(kind.removeprefix("fused "), V).eval()
    if kind.startswith("fused "):
        optimize_for_inference(model)
    rows = [Row(prompt, source, config, uniforms(config.seed, 0, 0)) for _, prompt, source, config in requests]
    running, suspended = RunningBatch(model), dict[Row, int]()
    for now in range(40):
        fresh = [row for row, (begins, *_) in zip(rows, requests, strict=True) if begins == now]
        back = [row for row, until in suspended.items() if until == now]
        fresh += [row for row in back if row.saved is None]
        if fresh:
            running.add(fresh)
        if kept := [row for row in back if row.saved is not None]:
            running.resume(kept)
        leaving = {rows[place]: keep for at, place, keep in pauses if at == now and place < len(rows)}
        leaving = {row: keep for row, keep in leaving.items() if row in running.rows}
        running.suspend(list(leaving))
        for row, keep in leaving.items():
            row.saved = row.saved if keep else None
        suspended = {row: until for row, until in suspended.items() if until > now} | dict.fromkeys(leaving, now + 3)
        if running.rows:
            running.step()
    assert not running.rows
    assert not suspended
    for row, (_, prompt, source, config) in zip(rows, requests, strict=True):
        (alone,) = sample(model, [prompt], config, [source])[0]
        assert [token for token in row.ids if token != EOS] == alone.ids


def test_a_retried_row_generates_the_same(monkeypatch):
    """If anything fails after tokens were chosen, nothing is generated twice and no random number is lost."""
    torch.manual_seed(0)
    model, config = make_model("decoder", V).eval(), SampleConfig(seed=4, max_length=6)
    (alone,) = sample(model, [[5]], config)[0]
    row, running = Row([5], None, config, uniforms(4, 0, 0)), RunningBatch(model)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "cat", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            running.add([row])
    assert (row.ids, running.rows) == ([], [])
    running.add([row])
    while running.rows:
        running.step()
    assert [token for token in row.ids if token != EOS] == alone.ids


def test_several_rows_of_one_prompt_read_it_once():
    model = make_model("decoder", V).eval()
    read, hidden = [], model.hidden
    model.hidden = lambda tokens, *rest: (read.append(tokens.shape), hidden(tokens, *rest))[1]
    config = SampleConfig(seed=3, n=4, max_length=6)
    wanted = [one.ids for one in sample(model, [[5, 6]], config)[0]]
    read.clear()
    running, generated = RunningBatch(model), []
    rows = [Row([5, 6], None, config, uniforms(3, 0, number)) for number in range(4)]
    generated += running.add(rows)
    assert read == [(1, 3)]
    while running.rows:
        generated += running.step()
    assert [[one.token for one in generated if one.row is row and one.token != EOS] for row in rows] == wanted


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_text_ends_at_the_last_position_of_a_model(kind):
    """Each row reads BOS and all generated tokens but the last, so 8 positions allow 8 tokens without a prompt."""
    torch.manual_seed(0)
    model = make_model(kind, V, positions=LearnedConfig(max_length=8)).eval()
    with torch.no_grad():
        model.head.weight_VD[EOS], model.head.weight_VD[5] = (
            0,
            -model.head.weight_VD[4],
        )  # 4 or 5 is more probable than EOS
    config = SampleConfig(temperature=0, max_length=50)
    prompts, source = [[], [5, 6, 7], [5] * 7], None if kind == "decoder" else [6] * 7
    rows = [Row(prompt, source, config, uniforms(0, 0, 0)) for prompt in prompts]
    running, generated = RunningBatch(model), []
    generated += running.add(rows[:1])
    generated += running.add(rows[1:])
    while running.rows:
        generated += running.step()
    for row, prompt, count in zip(rows, prompts, (8, 5, 1), strict=True):
        mine = [one for one in generated if one.row is row]
        assert ([one.end for one in mine][-1], len(mine)) == ("length", count)
        assert list(stream(model, prompt, config, source)) == [one.token for one in mine]
    sources = None if source is None else [source] * 3
    assert [len(one.ids) for (one,) in sample(model, prompts, config, sources)] == [8, 5, 1]
    for beam in (1, 3):
        (best,) = search(model, [[6] * 4], SearchConfig(beam=beam, max_length=50))[0]
        assert len(best.ids) <= (4 if kind == "decoder" else 8)
    with pytest.raises(DataError, match="positions end at 8"):
        running.add([Row([5] * 8, source, config, uniforms(0, 0, 0))])


def test_a_row_that_cannot_continue_is_found():
    model = make_model("decoder", V).eval()
    advance = model.advance

    def fails(token_B, state):
        if bool((torch.as_tensor(state.seen) > 4).any()):
            raise ValueError("too long")
        return advance(token_B, state)

    model.advance = fails
    running, config = RunningBatch(model), SampleConfig(temperature=0, max_length=50)
    short, long = (Row(prompt, None, config, uniforms(0, 0, 0)) for prompt in ([], [5, 6, 7, 8]))
    running.add([short, long])
    if len(running.rows) == 2:
        with pytest.raises(ValueError, match="too long"):
            running.step()
        assert [row for row, _ in running.failing()] == [long]
        running.remove([long])
        assert running.step()[0].row is short
