"""`allyouneed demo`: train on English-German number words, measure, translate unseen numbers, draw the attention."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from allyouneed.folder import Bundle
    from allyouneed.tasks import TaskData
    from allyouneed.training import Recipe

RECIPE = "numbers-en-de"
WANTED = (41, 1_234, 987_654)  # translated if not in the training data, together with some test numbers
INVERTED = "forty-one"
PARTS = re.compile(
    "(?:ein|zwei|drei|vier|fünf|sechs|sieben|acht|neun|sech|sieb|zwan)(?:zehn|zig|ßig)|zehn|elf|zwölf|hundert|tausend|und"
    "|eins?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|null|."
)


def command(out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo")) -> None:
    """Train on number words, translate and draw the attention.

    The words are English and German. The model translates numbers that it was not trained on.
    """
    from allyouneed.cli.terminal import note
    from allyouneed.evaluation.measure import task_data
    from allyouneed.pipeline import load
    from allyouneed.training import evaluate, load_recipe, train
    from allyouneed.training.progress_display import show_progress

    recipe = load_recipe(RECIPE)
    note(f"training on English -> German number words: {recipe.task.pairs:,} examples")  # type: ignore[attr-defined]
    with show_progress(recipe.train.metric) as listener:
        bundle = load(train(recipe, out, listener))
    data = task_data(bundle, out / "data")
    print("\nOn held-out numbers:")
    for score in evaluate(bundle.model, data, "test", recipe.decode):
        print(f"  {score.name} = {score.value:.4f}  {score.signature}")
    _translate_unseen(bundle, data, recipe)
    print(f"\nAttention: {_draw(bundle, data, out / 'attention.png')}")
    print("\nNext:")
    print(f"  echo seven hundred and seventy-seven | allyouneed translate {out}")
    print("  allyouneed list recipes")


def _translate_unseen(bundle: "Bundle", data: "TaskData", recipe: "Recipe") -> None:
    from allyouneed.decode import translate
    from allyouneed.tasks.numbers import NumbersConfig, number_words

    assert isinstance(recipe.task, NumbersConfig)
    known = {source for split in ("train", "valid") for source, _ in recipe.task.rows(split, recipe.seed)}
    wanted = [tuple(number_words(number, language) for language in ("en", "de")) for number in WANTED]
    shown = [(source, right) for source, right in [*wanted, *data.examples("test")[:3]] if source not in known]
    answers = translate(bundle.model, bundle.codec, [source for source, _ in shown], recipe.decode)
    print(f"\nNumbers that are not in the {len(known):,} training and validation examples:")
    for (source, right), ranked in zip(shown, answers, strict=True):
        verdict = "right" if ranked[0].text == right else f"wrong: {right}"
        print(f"  {source} -> {ranked[0].text}  ({verdict})")


def _draw(bundle: "Bundle", data: "TaskData", path: Path) -> Path:
    """Draw the attention of a held-out number that ends in forty-one, for the head with the clearest inversion."""
    from allyouneed.inspection.maps import heads_of, translation_maps
    from allyouneed.inspection.pictures import Group, draw_attention

    texts = [source for source, _ in data.examples("test") if source.endswith(INVERTED) and len(source.split()) > 3]
    translations = [translation_maps(bundle, text) for text in texts]
    candidates = [(found, name, weights) for found in translations for name, weights in heads_of(found.of("cross"))]
    found, name, weights_TS = max(candidates, key=lambda candidate: _inversion(candidate[2]))
    written = "".join(found.target[:-1])
    parts = PARTS.findall(written)
    marked = {len(parts) - 3, len(parts) - 1}  # ein und vierzig
    return draw_attention(
        path,
        weights_TS,
        found.source,
        found.target,
        title=f"{''.join(_spaced(found.source[:-1]))}  →  {written}",
        note=f"{name}. Column: the token being written; rows: the tokens it reads. German writes one-and-forty.",
        groups=[Group(part, len(part), place in marked) for place, part in enumerate(parts)],
        marked=[len(found.source) - 4, len(found.source) - 2],  # forty - one end
    )


def _inversion(weights_TS: "Tensor") -> float:
    """Return the attention of "ein" to "one", or of "vierzig" to "forty", whichever is less."""
    end, ein, vierzig = len(weights_TS) - 1, len("einundvierzig"), len("vierzig")
    one = weights_TS[end - ein : end - ein + len("ein"), -2].mean()
    forty = weights_TS[end - vierzig : end, -4].mean()
    return float(min(one, forty))


def _spaced(words: list[str]) -> list[str]:
    """Return words with blanks between them, but not around a hyphen."""
    pairs = zip(words, [*words[1:], "-"], strict=True)
    return [word if "-" in (word, after) else f"{word} " for word, after in pairs]
