"""`allyouneed list`: all mixers, positions, models, tasks and recipes, one line each."""

from typing import Annotated, Any, Literal

import typer

Kind = Literal["mixers", "positions", "models", "tasks", "recipes"]
KINDS: tuple[Kind, ...] = ("mixers", "positions", "models", "tasks", "recipes")
Row = tuple[str, str, str]


def command(kind: Annotated[Kind | None, typer.Argument(help="What to list.", show_default="all")] = None) -> None:
    """List mixers, positions, models, tasks and recipes."""
    for one in (kind,) if kind is not None else KINDS:
        rows = _rows(one)
        print(f"{one}:" if kind is None else "", end="\n" if kind is None else "")
        name_width, summary_width = (max(len(row[place]) for row in rows) for place in (0, 1))
        for name, summary, paper in rows:
            line = f"{name:{name_width}}  {summary:{summary_width}}  {paper}".rstrip()
            print(line if kind is not None else f"  {line}")


def _rows(kind: Kind) -> list[Row]:
    if kind == "recipes":
        return _recipes()
    from allyouneed.mixers import MIXERS
    from allyouneed.models import MODELS
    from allyouneed.positions import POSITIONS
    from allyouneed.tasks import TASKS

    tables: dict[str, dict[str, Any]] = {"mixers": MIXERS, "positions": POSITIONS, "models": MODELS, "tasks": TASKS}
    return [(name, config.summary, config.paper) for name, config in tables[kind].items()]


def _recipes() -> list[Row]:
    from allyouneed.config import read_recipe
    from allyouneed.training import recipe_folder

    files = sorted(recipe_folder().glob("*.toml"))
    return [(file.stem, str(read_recipe(file).get("about", "")), "") for file in files]
