"""`translate` with ensembles, minimum Bayes risk and a reverse model, by a barely trained model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_commands import Commands

import allyouneed
from allyouneed.decode.rerank import Reverse
from allyouneed.errors import ConfigError
from allyouneed.evaluation.ensembles import ensemble_of
from allyouneed.evaluation.settings import reverse_of
from allyouneed.folder import load_folder
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols

GIVEN = "forty-two\nnine\n\nseventeen\n"
TEXTS = GIVEN.split("\n")[:4]


def test_an_ensemble_of_checkpoints(run: Commands, numbers: str) -> None:
    saved = sorted((Path(numbers) / "checkpoints").iterdir())
    first, last = str(saved[0]), str(saved[-1])
    done = run("translate", first, "--with", last, "--with", numbers, "--beam", "2", given=GIVEN)
    assert done.status == 0, done.err
    together = allyouneed.load(first, ensemble=[last, numbers])
    assert done.out.split("\n")[:4] == together.translate(TEXTS, beam=2)
    assert done.out.split("\n")[2] == ""
    # Copies of one model are that model, also with a constraint and an alignment.
    rest = ["--beam", "2", "--keep", "nine", "--align"]
    alone, twice = (run("translate", numbers, *more, *rest, given=GIVEN) for more in ([], ["--with", numbers]))
    assert twice.out == alone.out


def test_a_reverse_model_reranks(run: Commands, numbers: str) -> None:
    options = ["--beam", "3", "--n-best", "3", "--scores"]
    plain = run("translate", numbers, *options, "--length-penalty", "0", given=GIVEN)
    ranked = run("translate", numbers, *options, "--length-penalty", "0", "--reverse", numbers, given=GIVEN)
    assert ranked.status == 0, ranked.err
    rows = [line.split("\t") for line in plain.out.splitlines() if line.count("\t") == 2 and line.split("\t")[2]]
    pairs = "".join(f"{text}\t{TEXTS[int(number) - 1]}\n" for number, _, text in rows)
    back = [line.split("\t")[0] for line in run("score", numbers, given=pairs).out.splitlines()]
    expected = {
        (number, text): float(score) + float(more) for (number, score, text), more in zip(rows, back, strict=True)
    }
    found = [line.split("\t") for line in ranked.out.splitlines() if line.split("\t")[2]]
    assert len(found) == len(expected)
    for number, score, text in found:
        assert float(score) == pytest.approx(expected[number, text], abs=2e-3)
    for number in ("1", "2", "4"):
        scores = [float(score) for line, score, _ in found if line == number]
        assert scores == sorted(scores, reverse=True)


def test_least_risk(run: Commands, numbers: str) -> None:
    options = ["--mbr", "6", "--epsilon", "0.1", "--seed", "3", "--scores"]
    done = run("translate", numbers, *options, given=GIVEN)
    assert done.status == 0, done.err
    again = run("translate", numbers, *options, given="\n".join(TEXTS[::-1]))
    assert sorted(again.out.splitlines()) == sorted(done.out.splitlines())
    assert all(0 <= float(line.split("\t")[0]) <= 100 for line in done.out.splitlines())
    assert run("translate", numbers, "--mbr", "3", "--mbr-from", "beam", "--utility", "bleu", given=GIVEN).status == 0


def test_from_python(numbers: str) -> None:
    pipeline = allyouneed.load(numbers)
    assert len(pipeline.translate(TEXTS, mbr=4)) == 4
    same = pipeline.translate(TEXTS, beam=3, n_best=1, reverse=Reverse(pipeline.model, pipeline.codec, 0.0))
    assert same[2][0].text == ""
    assert same[0][0].score == same[0][0].logprob
    with pytest.raises(ConfigError, match="mbr and reverse: two ways"):
        pipeline.translate(TEXTS, mbr=4, reverse=pipeline)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--utility", "bleu"], "--utility: has no effect without --mbr"),
        (["--epsilon", "0.1"], "--epsilon: has no effect without --mbr"),
        (["--reverse-weight", "2"], "--reverse-weight: has no effect without --reverse"),
        (["--mbr", "4", "--reverse", "x"], "--mbr and --reverse: two ways to choose a translation"),
        (["--with", "x", "--engine", "ctranslate2"], "--with: --engine ctranslate2 cannot do this"),
        (["--with", "x", "--shortlist"], "--shortlist: is for a single model"),
    ],
)
def test_refusals_before_a_model_is_loaded(run: Commands, arguments: list[str], message: str) -> None:
    done = run("translate", "no-model", *arguments, given="")
    assert done.status == 2
    assert message in done.err


def test_models_with_other_ids_are_no_ensemble(numbers: str) -> None:
    bundle = load_folder(numbers)
    source, target = bundle.codec.both()
    others: list[tuple[dict[str, Any], str]] = [
        ({"target": of_symbols("abc", "characters")}, "its target vocabulary is not that of"),
        ({"source": of_symbols("abc", "characters")}, "its source vocabulary is not that of"),
        ({"frame": ((), ())}, "its sources begin or end with other tokens"),
    ]
    for changed, message in others:
        other = replace(bundle, codec=replace(bundle.codec, **changed))
        with pytest.raises(ConfigError, match=message):
            ensemble_of([bundle, other])
    assert ensemble_of([bundle, replace(bundle, codec=Codec(source, target))]).model.longest == bundle.model.longest


def test_a_reverse_model_gets_the_languages_in_the_other_order(numbers: str) -> None:
    bundle = load_folder(numbers)
    codec = replace(bundle.codec, tags={"de": 4, "fr": 5}, frame=((4,), (2,)))
    reverse = reverse_of(replace(bundle, codec=codec), 1.0, "de", "fr").codec
    assert (reverse.framing, reverse.prefix) == (((5,), (2,)), (4,))


def test_models_that_do_not_fit(run: Commands, numbers: str, language: str, classifier: str) -> None:
    for arguments, message in (
        (["--with", language], "lm/model: does not translate; an ensemble needs models that do"),
        (["--reverse", classifier], "c/model: the reverse model does not translate"),
        (["--mbr", "1"], "--mbr: n: "),
        (["--mbr", "4", "--prefix", "ein"], "mbr: its candidates cannot be constrained"),
        (["--reverse", numbers, "--beam", "1"], "reverse: a beam of 1 has nothing to choose from"),
    ):
        done = run("translate", numbers, *arguments, given="one\n")
        assert done.status == 2
        assert message in done.err
