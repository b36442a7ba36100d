"""Faults of numbers: loss spikes and NaN gradients."""

import json
import time
from pathlib import Path

from fault_bench import STEPS, Bench, bench, read_text
from kill import outcome, wait, write_recipe
from safetensors.torch import load_file, save_file

from allyouneed.storage.manifest import write_manifest


def spikes(folder: Path) -> tuple[Bench, str]:
    """Gradients above 1.05 times their mean are skipped; killed and replayed, the same ones are skipped again."""
    made = bench(folder, ("[train]\n", "[train]\nspike = 1.05\n"), (f"steps = {STEPS}", "steps = 160"))
    skipped = _skips(folder / "undisturbed")
    made.require(len(skipped) > 3, f"only {len(skipped)} steps were skipped: this shows nothing")
    _kill_after_skips(made, folder / "run")
    made.require(_skips(folder / "run") == skipped, "other steps were skipped")
    return made, f"{len(skipped)} steps skipped, the same ones after 3 kills; the same bits"


def _kill_after_skips(made: Bench, run: Path) -> None:
    """Kill a run three times soon after it has skipped a step, then let it end."""
    for _ in range(3):
        seen = read_text(run / "log.jsonl").count('"skip"')
        process = made.start(run)
        while read_text(run / "log.jsonl").count('"skip"') <= seen and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.communicate()
    made.ends_well(run)


def _skips(run: Path) -> list[tuple[int, str]]:
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [(record["step"], record["norm"]) for record in records if record["kind"] == "skip"]


def nan_gradients(folder: Path) -> tuple[Bench, str]:
    """One row of the initial weights is NaN: steps whose batch reads it are skipped, the others train."""
    made = Bench(folder, write_recipe(folder, "language"))
    made.recipe.write_text(made.recipe.read_text().replace("layers = 2", "layers = 2\ntied = false"))
    lines = (folder / "text").read_text().splitlines()
    lines[20] += " q"  # the only one, and not in the held-out part
    (folder / "text").write_text("\n".join(lines) + "\n")
    wait(made.start(folder / "first", "--steps", "1"))
    _write_nan(folder / "first" / "model", "q")
    made.arguments = ["--from", str(folder / "first"), "--steps", str(STEPS)]
    wait(made.start(folder / "undisturbed"))
    made.expected, skipped = outcome(folder / "undisturbed"), _skips(folder / "undisturbed")
    made.require(3 < len(skipped) < STEPS // 2, f"{len(skipped)} steps were skipped: this shows nothing")
    made.require({norm for _, norm in skipped} == {"nan"}, "another reason")
    _kill_after_skips(made, folder / "run")
    made.require(_skips(folder / "run") == skipped, "other steps were skipped")
    return (
        made,
        f"{len(skipped)} of {STEPS} steps had a gradient of nan: skipped, also after 3 kills; the same bits",
    )


def _write_nan(model: Path, character: str) -> None:
    tensors = load_file(model / "model.safetensors")
    number = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"][character]
    name = "target.weight_VD"
    tensors[name][number] = float("nan")
    save_file(tensors, model / "model.safetensors")
    write_manifest(model)
