"""`allyouneed demo`: train English -> German number words, measure, translate unseen numbers, draw the attention."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from allyouneed.folder import Bundle
    from allyouneed.tasks import TaskData
    from allyouneed.train import Recipe

RECIPE = "numbers-en-de"
WANTED = (41, 1_234, 987_654)  # translated if training has not shown them, and some of the test numbers
INVERTED = ("forty-one", "einundvierzig")
PARTS = re.compile(
    "(?:ein|zwei|drei|vier|fünf|sechs|sieben|acht|neun|sech|sieb|zwan)(?:zehn|zig|ßig)|zehn|elf|zwölf|hundert|tausend|und"
    "|eins?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|null|."
)


def command(out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo")) -> None:
    """Two minutes: a Transformer learns number words, and shows where it looks."""
    from allyouneed.cli.terminal import note
    from allyouneed.cli.watch import watching
    from allyouneed.folder import load_folder
    from allyouneed.lab.held_out import own_data
    from allyouneed.train import evaluate, load_recipe, train

    recipe = load_recipe(RECIPE)
    note(f"learning English -> German number words from {recipe.task.pairs:,} examples")  # type: ignore[attr-defined]
    with watching(recipe.train.metric) as watcher:
        bundle = load_folder(train(recipe, out, watcher))
    data = own_data(bundle, out / "data")
    print("\nOn held-out numbers:")
    for score in evaluate(bundle.model, data, "test", recipe.decode):
        print(f"  {score.name} = {score.value:.4f}  {score.signature}")
    _translate_unseen(bundle, data, recipe)
    print(f"\nWhere it looked: {_draw(bundle, data, out / 'attention.png')}")
    print("\nNext:")
    print(f"  echo seven hundred and seventy-seven | allyouneed translate {out}")
    print("  allyouneed list recipes")


def _translate_unseen(bundle: "Bundle", data: "TaskData", recipe: "Recipe") -> None:
    from allyouneed.decode import translate
    from allyouneed.tasks.numbers import NumbersConfig, number_words

    assert isinstance(recipe.task, NumbersConfig)
    seen = {source for split in ("train", "valid") for source, _ in recipe.task.rows(split, recipe.seed)}
    wanted = [tuple(number_words(number, language) for language in ("en", "de")) for number in WANTED]
    shown = [(source, right) for source, right in [*wanted, *data.examples("test")[:3]] if source not in seen]
    answers = translate(bundle.model, bundle.codec, [source for source, _ in shown], recipe.decode)
    print(f"\nNumbers that are not among the {len(seen):,} it was trained and tuned on:")
    for (source, right), ranked in zip(shown, answers, strict=True):
        verdict = "right" if ranked[0].text == right else f"wrong: {right}"
        print(f"  {source} -> {ranked[0].text}  ({verdict})")


def _draw(bundle: "Bundle", data: "TaskData", path: Path) -> Path:
    """The picture of a held-out number that ends in forty-one: German says the one first."""
    from allyouneed.lab.maps import clearest, translation_maps
    from allyouneed.lab.pictures import Group, draw_attention

    texts = [source for source, _ in data.examples("test") if source.endswith(INVERTED[0])]
    text = min((source for source in texts if len(source.split()) > 3), key=len, default=INVERTED[0])
    found = translation_maps(bundle, text)
    name, weights_TS = clearest(found.of("cross"))
    written = "".join(found.target[:-1])
    parts = PARTS.findall(written)
    from_end = len(PARTS.findall(INVERTED[1]))
    marked = [place >= len(parts) - from_end and part != "und" for place, part in enumerate(parts)]
    groups = [Group(part, len(part), mark) for part, mark in zip(parts, marked, strict=True)]
    rows = [len(found.source) - 4, len(found.source) - 2]  # forty - one end
    return draw_attention(
        path,
        weights_TS,
        found.source,
        found.target,
        title=f"{text}  →  {written}",
        note=f"{name}. Columns: what is being written; rows: what is read for it. German says “one-and-forty”.",
        groups=groups,
        marked=rows,
    )
