"""Saves a compiled program as a model folder, for `allyouneed.load`, `evaluate` and `train --from`.

Its task is the program itself (`tasks/rasp.py`), so the interpreter provides the targets of held-out inputs.
"""

from collections.abc import Mapping
from pathlib import Path

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.folder import save_folder
from allyouneed.rasp.compiler.compile import compile_rasp
from allyouneed.rasp.compiler.compiled import CompiledProgram
from allyouneed.rasp.compiler.source import source
from allyouneed.rasp.graph import Node, SOp
from allyouneed.rasp.loading import read_program
from allyouneed.tasks.rasp import RaspConfig, written
from allyouneed.training.recipe import Recipe
from allyouneed.version import __version__

ABOUT = ", compiled from RASP"  # suffix of `about` in the recipe of a compiled program
# Defaults for `train --from`. Weights that separate neighbouring values are hundreds of times larger than random ones,
# so the usual learning rate breaks them (docs/rasp-compiler.md), and label smoothing blurs the outputs.
TUNING = {"optimizer": {"lr": 1e-7}, "label_smoothing": 0.0}


def compile_file(
    file: str | Path,
    folder: str | Path,
    vocabulary: str,
    length: int,
    *,
    result: str | None = None,
    causal: bool = False,
    verified: bool = True,
    compat: bool = False,
) -> tuple[CompiledProgram, Path]:
    """Compile an s-op of a `.rasp` file into a model folder. `vocabulary`: characters, or words separated by spaces."""
    program = read_program(file, compat)
    name = result if result is not None else next(reversed(program.sops), "")
    sop = program.sop(result)
    tokens = vocabulary.split() if " " in vocabulary else list(vocabulary)
    compiled = compile_rasp({name: sop}, tokens, length, causal=causal, verified=verified, names=program.names)
    return compiled, save(compiled, {name: sop}, folder, program.names)


def save(
    compiled: CompiledProgram, outputs: Mapping[str, SOp], folder: str | Path, names: Mapping[Node, str] | None = None
) -> Path:
    """Write the model folder of a program with one output. `names`: names of nodes for its README."""
    if len(outputs) != 1:
        raise ConfigError(
            f"a model folder has one output, not {len(outputs)} ({', '.join(outputs)}); compile each separately"
        )
    ((name, sop),) = outputs.items()
    if not all(isinstance(token, str) for token in compiled.vocabulary):
        raise ConfigError(
            "a model folder reads text: the vocabulary should contain strings (tokens_int converts them to numbers)"
        )
    classes = [written(value) for value in compiled.outputs[0].values]
    blank = [name for name in classes if not name or name.split() != [name]]
    if blank:
        raise ConfigError(
            f"{name}: the value {blank[0]!r} cannot be written: spaces separate the values of a model folder"
        )
    task = {
        "type": "rasp-causal" if compiled.causal else "rasp",
        "program": source({"result": sop}),  # not a name of the library
        "result": "result",
        "vocabulary": list(compiled.vocabulary),
        "lengths": [1, compiled.length],
        "classes": classes,
    }
    config = compiled.model.config.model_dump(mode="json")
    tree = {"about": f"{name}{ABOUT}", "task": task, "model": config, "train": TUNING}
    recipe = parse(Recipe, tree)
    assert isinstance(recipe.task, RaspConfig)
    return save_folder(
        folder, compiled.model, recipe.task.codec(), recipe, _card(compiled, name, source(outputs, names))
    )


def _card(compiled: CompiledProgram, name: str, program: str) -> str:
    tokens = " ".join(map(repr, compiled.vocabulary))
    lines = [
        f"# {name}: RASP",
        "",
        f"{compiled.report.parameters:,} parameters, compiled, not trained, with allyouneed {__version__}. "
        f"Inputs are 1 to {compiled.length} tokens from {tokens}.",
        "",
        f"Its outputs are {compiled.verified}." if compiled.verified else "It was not compared with the interpreter.",
        "",
        *(["A decoder: every selector selects among the positions up to the query's own.", ""] * compiled.causal),
        "## Program",
        "",
        "```",
        program.rstrip(),
        "```",
        "",
        "## Layout",
        "",
        "```",
        str(compiled.report),
        "```",
        "",
    ]
    return "\n".join(lines)
