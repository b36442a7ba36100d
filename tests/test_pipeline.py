"""`allyouneed.load`: the fast model, with the outputs, settings and errors of the command line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import allyouneed
from allyouneed.cli import app
from allyouneed.config import parse
from allyouneed.decode import SearchConfig, translate
from allyouneed.errors import ConfigError, DataError, UserError
from allyouneed.folder import load_folder, save_folder
from allyouneed.inference.optimize import is_optimized
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols
from allyouneed.training import Recipe

LETTERS = of_symbols("abcdefghijklmnopqrstuvwxyz -", "characters")
SMALL: dict[str, Any] = {"mixer": {"type": "softmax", "heads": 2}, "width": 16, "hidden": 32}
Printed = Callable[..., str]
TEXTS = ["forty-one", "nine", "", "seven hundred"]


def save(path: Path, model: dict[str, Any], task: dict[str, Any], codec: Codec, **decode: Any) -> str:
    torch.manual_seed(5)
    recipe = parse(Recipe, {"task": task, "model": {**SMALL, **model}, "decode": decode})
    target = codec.target.size if codec.target is not None else len(codec.classes or ())
    built = recipe.model.build(Sizes(codec.source.size if codec.source else target, target))
    with torch.no_grad():
        built.head.weight_VD.mul_(3.0)
    return str(save_folder(path, built, codec, recipe, ""))


@pytest.fixture
def translator(tmp_path: Path) -> str:
    model = {"type": "encoder-decoder", "encoder_layers": 1, "decoder_layers": 2}
    search = {"beam": 3, "length_penalty": 1.1, "max_length": 9}
    return save(tmp_path / "t", model, {"type": "numbers"}, Codec(LETTERS, LETTERS), **search)


@pytest.fixture
def language_model(tmp_path: Path) -> str:
    task = {"type": "language", "train": "t", "valid": "v"}
    return save(tmp_path / "l", {"type": "decoder", "layers": 2}, task, Codec(target=LETTERS))


@pytest.fixture
def classifier(tmp_path: Path) -> str:
    task = {"type": "classification", "train": "t", "valid": "v"}
    return save(tmp_path / "c", {"type": "encoder", "layers": 2}, task, Codec(LETTERS, classes=("good", "bad", "odd")))


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Return a function that runs a command and returns what it prints."""

    def run(*arguments: str, stdin: str = "") -> str:
        (tmp_path / "stdin").write_text(stdin)
        with (tmp_path / "stdin").open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            app([*arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_the_model_is_optimized(translator: str) -> None:
    assert is_optimized(allyouneed.load(translator).model)
    assert not is_optimized(load_folder(translator).model)
    bundle = allyouneed.load(translator)
    with pytest.raises(ConfigError, match="optimized for inference cannot be saved"):
        save_folder(bundle.path.parent / "again", bundle.model, bundle.codec, parse(Recipe, bundle.recipe), "")


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, ()),
        ({"beam": 1}, ("--beam", "1")),
        ({"length_penalty": 0.0, "max_length": 4}, ("--length-penalty", "0", "--max-length", "4")),
    ],
)
def test_translate_is_the_command(translator: str, settings: Any, flags: tuple[str, ...], printed: Printed) -> None:
    found = allyouneed.load(translator).translate(TEXTS, **settings)
    assert found == printed("translate", translator, *flags, stdin="\n".join(TEXTS) + "\n").splitlines()


def test_translate_uses_the_search_of_the_recipe(translator: str) -> None:
    bundle = load_folder(translator)
    own = SearchConfig(beam=3, length_penalty=1.1, max_length=9)
    right = translate(bundle.model, bundle.codec, [text for text in TEXTS if text], own)
    found = allyouneed.load(translator).translate(TEXTS)
    assert [text for text in found if text] == [ranked[0].text for ranked in right]


def test_n_best_has_scores(translator: str) -> None:
    found = allyouneed.load(translator).translate(TEXTS, n_best=5)
    assert [len(ranked) for ranked in found] == [5, 5, 1, 5]
    assert all(ranked == sorted(ranked, key=lambda one: -one.score) for ranked in found)


def test_classify_is_the_command(classifier: str, printed: Printed) -> None:
    bundle, texts = allyouneed.load(classifier), ["one", "two", "three"]
    assert bundle.classify(texts) == printed("translate", classifier, stdin="\n".join(texts) + "\n").splitlines()
    ranked = bundle.classify(texts, n_best=3)
    assert [{one.text for one in each} for each in ranked] == [{"good", "bad", "odd"}] * 3
    assert all(sum(torch.tensor(one.logprob).exp().item() for one in each) == pytest.approx(1) for each in ranked)


@pytest.mark.parametrize("kind", ["translator", "language_model"])
def test_generate_is_the_command(kind: str, request: pytest.FixtureRequest, printed: Printed) -> None:
    folder = request.getfixturevalue(kind)
    bundle, flags = allyouneed.load(folder), ("--prompt", "ab", "--max-length", "9", "--temperature", "0.7")
    text = bundle.generate("ab", max_length=9, temperature=0.7)
    assert text + "\n" == printed("generate", folder, *flags)
    several = bundle.generate("ab", max_length=9, temperature=0.7, n=3)
    assert several[0] == text
    assert "".join(f"--- {number}\n{one}\n" for number, one in enumerate(several, 1)) == printed(
        "generate", folder, *flags, "--n", "3"
    )


def test_score_is_the_command(translator: str, language_model: str, classifier: str, printed: Printed) -> None:
    items: dict[str, list[Any]] = {
        translator: [("nine", "neun"), ("one", "")],
        language_model: ["abc", "de"],
        classifier: [("nine", "odd"), ("one", "good")],
    }
    for folder, rows in items.items():
        lines = "".join((row if isinstance(row, str) else "\t".join(row)) + "\n" for row in rows)
        found = [f"{one.logprob:.6f}\t{one.tokens}" for one in allyouneed.load(folder).score(rows)]
        assert found == printed("score", folder, stdin=lines).splitlines()
    assert allyouneed.load(language_model).score([""])[0].tokens == 0


def test_a_search_setting_of_a_classifier_is_refused(classifier: str) -> None:
    with pytest.raises(ConfigError, match="beam: has no effect with a classifier, whose classes need no search"):
        allyouneed.load(classifier).translate(["one"], beam=5)


def test_bad_requests_name_the_remedy(translator: str, language_model: str, classifier: str) -> None:
    bundle = allyouneed.load(translator)
    with pytest.raises(ConfigError, match="a language model has no source to translate"):
        allyouneed.load(language_model).translate(["a"])
    with pytest.raises(ConfigError, match="does not generate text"):
        allyouneed.load(classifier).generate("a")
    with pytest.raises(ConfigError, match="has no classes; try"):
        bundle.classify(["a"])
    with pytest.raises(ConfigError, match="beams"):
        bundle.translate(["a"], beams=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="heat"):
        bundle.generate("a", heat=3)  # type: ignore[call-overload]
    with pytest.raises(DataError, match="a single text; should be a list"):
        bundle.translate("nine")
    with pytest.raises(DataError, match="item 2: should be a pair"):
        bundle.score([("a", "b"), ("a", "b", "c")])  # type: ignore[list-item]
    with pytest.raises(DataError, match="item 1: of type tuple; should be a text"):
        allyouneed.load(language_model).score([("a", "b")])
    with pytest.raises(DataError, match="texts: line 2: a text of more than"):
        bundle.translate(["a", "b" * 5000])
    with pytest.raises(ConfigError, match="has no shortlist"):
        bundle.translate(["a"], shortlist=True)


def test_any_ordered_iterable_is_accepted(translator: str, language_model: str) -> None:
    pipeline, pairs = allyouneed.load(translator), [("nine", "neun"), ("one", "eins")]
    assert pipeline.translate(text for text in TEXTS) == pipeline.translate(tuple(TEXTS)) == pipeline.translate(TEXTS)
    assert pipeline.score(pair for pair in pairs) == pipeline.score(pairs)
    assert allyouneed.load(language_model).score(iter(["abc"])) == allyouneed.load(language_model).score(["abc"])


def test_settings_change_the_search(translator: str) -> None:
    found = allyouneed.load(translator, sets=["decode.beam=1"]).translate(TEXTS)
    assert found == allyouneed.load(translator).translate(TEXTS, beam=1)


def test_repr_is_one_line(translator: str) -> None:
    for bundle in (allyouneed.load(translator), load_folder(translator)):
        count = f"{bundle.model.parameter_count():,}"
        assert repr(bundle) == f"{type(bundle).__name__}({translator!r}: encoder-decoder, {count} parameters)"


Mistake = Callable[[Any, Any, Path], object]
MISTAKES: dict[str, tuple[Mistake, str]] = {
    "a text to translate": (lambda t, m, _: t.translate("nine"), "texts: a single text; should be a list of texts"),
    "a dict to translate": (lambda t, m, _: t.translate({"a": 1}), "texts: of type dict; should be a list of texts"),
    "a set to translate": (lambda t, m, _: t.translate({"a"}), "texts: of type set; should be a list of texts"),
    "bytes to translate": (lambda t, m, _: t.translate(b"a"), "texts: of type bytes; should be a list of texts"),
    "nothing to translate": (lambda t, m, _: t.translate(None), "texts: of type NoneType; should be a list of texts"),
    "translate a number": (lambda t, m, _: t.translate(["a", 1]), "texts: item 2: of type int; should be a text"),
    "translate None": (lambda t, m, _: t.translate([None]), "texts: item 1: of type NoneType; should be a text"),
    "translate bytes": (lambda t, m, _: t.translate([b"a"]), "texts: item 1: of type bytes; should be a text"),
    "terms as a dict": (lambda t, m, _: t.translate(["a"], glossary={"a": "b"}), "of type dict; should be a Glossary"),
    "a text of prefixes": (
        lambda t, m, _: t.translate(["a"], prefixes="x"),
        "prefixes: a single text; should be a list",
    ),
    "a path of a reverse model": (
        lambda t, m, _: t.translate(["a"], reverse="x"),
        "of type str; should be a model that",
    ),
    "samples as a text": (
        lambda t, m, _: t.translate(["a"], mbr="8"),
        "mbr: of type str; should be a number of samples",
    ),
    "one more model": (
        lambda t, m, _: allyouneed.load(t.path, ensemble=str(t.path)),
        "ensemble: a single text; should be a list of folders",
    ),
    "a list of prompts": (lambda t, m, _: m.generate(["x"]), "prompt: of type list; should be a text"),
    "no prompt": (lambda t, m, _: m.generate(None), "prompt: of type NoneType; should be a text"),
    "a text to score": (lambda t, m, _: m.score("the cat"), "items: a single text; should be a list of texts"),
    "a pair to score": (lambda t, m, _: t.score("the cat"), "items: a single text; should be a list of pairs"),
    "score None": (lambda t, m, _: m.score([None]), "items: item 1: of type NoneType; should be a text"),
    "score None as a pair": (lambda t, m, _: t.score([None]), "items: item 1: should be a pair"),
    "score numbers": (lambda t, m, _: t.score([(1, 2)]), "items: item 1: source: of type int; should be a text"),
    "score a dict": (lambda t, m, _: t.score([{0: "a", 1: "b"}]), "items: item 1: should be a pair"),
    "load from an unknown device": (lambda t, m, _: allyouneed.load(t.path, device="cud"), "device cud: not usable"),
    "load from a number": (lambda t, m, _: allyouneed.load(3), "model folder: of type int; should be a path"),  # type: ignore[arg-type]
    "settings as a text": (lambda t, m, _: allyouneed.load(t.path, sets="seed=3"), "should be a list, such as"),
    "settings as numbers": (lambda t, m, _: allyouneed.load(t.path, sets=[3]), "setting 3: should be a text"),  # type: ignore[list-item]
    "an unknown setting": (lambda t, m, _: allyouneed.load(t.path, sets=["task.pears=3"]), "unknown name 'pears'"),
    "train on an unknown device": (lambda t, m, out: allyouneed.train("copy", out, device="cud"), "device cud: not"),
    "train nothing": (lambda t, m, out: allyouneed.train(None, out), "recipe: of type NoneType; should be a path"),  # type: ignore[arg-type]
    "train a dict": (lambda t, m, out: allyouneed.train({}, out), "recipe: of type dict; should be a path"),  # type: ignore[arg-type]
    "train into nothing": (lambda t, m, _: allyouneed.train("copy", None), "run folder: of type NoneType"),  # type: ignore[arg-type]
    "train settings as a text": (lambda t, m, out: allyouneed.train("copy", out, sets="seed=3"), "should be a list"),
    "two budgets": (lambda t, m, out: allyouneed.train("copy", out, minutes=1, steps=1), "found minutes and steps"),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_mistakes_are_one_line(mistake: str, translator: str, language_model: str, tmp_path: Path) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(UserError) as found:
        make(allyouneed.load(translator), allyouneed.load(language_model), tmp_path / "run")
    assert message in str(found.value)
    assert "--" not in str(found.value)
    assert "\n" not in str(found.value)


SENTENCES = of_symbols("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz .!", "characters")
PROSE = "A dog runs. Two men sit!  They wait. No."


def prose_translator(path: Path, sentences: int | None) -> str:
    model = {"type": "encoder-decoder", "encoder_layers": 1, "decoder_layers": 2}
    task = {"type": "translation", "train": ["t.en", "t.de"], "valid": ["v.en", "v.de"]}
    codec = Codec(SENTENCES, SENTENCES, sentences=sentences)
    return save(path / f"p{sentences}", model, task, codec, beam=2, max_length=9)


@pytest.mark.parametrize("sentences", [None, 1, 2, 4])
def test_a_text_of_several_sentences(tmp_path: Path, sentences: int | None, printed: Printed) -> None:
    """Split by what the training lines held: `sentences` of the codec."""
    model = allyouneed.load(folder := prose_translator(tmp_path, sentences))
    pieces = {
        1: ["A dog runs.", "Two men sit!", "They wait.", "No."],
        2: ["A dog runs. Two men sit!", "They wait. No."],
    }
    gaps = {1: [" ", "  ", " "], 2: ["  "]}
    whole = model.translate([PROSE], sentences="never")[0]
    each = {n: model.translate(texts, sentences="never") for n, texts in pieces.items()}
    joined = {n: "".join(map("".join, zip(each[n], [*gaps[n], ""], strict=True))) for n in pieces}
    auto = whole if sentences == 4 else joined[sentences or 1]
    assert whole != auto or sentences == 4
    assert model.translate([PROSE, "", "Yes."]) == [auto, "", *model.translate(["Yes."], sentences="never")]
    assert model.translate([PROSE], sentences="always") == [joined[1]]
    assert printed("translate", folder, stdin=PROSE + "\n") == auto + "\n"
    assert printed("translate", folder, "--sentences", "never", stdin=PROSE + "\n") == whole + "\n"
    ranked = model.translate([PROSE], n_best=2)[0]
    assert ranked[0].text == auto or sentences == 4
    assert len(ranked) == 2
    assert ranked[0].score >= ranked[1].score


def test_other_tasks_are_not_split(translator: str, classifier: str) -> None:
    """Number words and classes: a text is read as a whole, unless the caller requires otherwise."""
    for folder in (translator, classifier):
        model = allyouneed.load(folder)
        assert model.translate([PROSE]) == model.translate([PROSE], sentences="never")
    with pytest.raises(ConfigError, match="sentences: 'always' has no effect with a classifier"):
        allyouneed.load(classifier).translate([PROSE], sentences="always")
    with pytest.raises(ConfigError, match=r"unknown name 'Never' \(did you mean 'never'"):
        allyouneed.load(translator).translate([PROSE], sentences="Never")  # type: ignore[call-overload]


def test_only_pieces_have_to_be_short(tmp_path: Path) -> None:
    model, long = allyouneed.load(prose_translator(tmp_path, 1)), "A dog runs. " * 400
    assert model.translate([long])[0].count(" ") >= 399
    with pytest.raises(DataError, match="texts: line 2: a text of more than 4,096 tokens"):
        model.translate(["Yes.", long], sentences="never")
