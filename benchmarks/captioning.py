"""Name unseen emoji: Show, Attend and Tell, a Transformer that reads the same grid, and a decoder without the image.

    python benchmarks/captioning.py --out runs/captioning [--seeds 3] [--held-out emoji] [--set ..] [--picture FILE.png]

Each run is equivalent to `allyouneed train RECIPE --seed S`, in this process, on one thread. Finished runs are not
repeated; the table is printed from the stored results: mean and range over seeds, on the test split. `--picture` draws
the attention of the first seed's LSTM on some of the best-named images of the test split.
"""

import argparse
import resource
import statistics
import textwrap
from pathlib import Path

import numpy as np
import torch
from results_cache import cached_result

from allyouneed.decode import translate
from allyouneed.decode.base import evaluating
from allyouneed.evaluation.measure import evaluate_split
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import load_folder
from allyouneed.inspection.maps import record_maps
from allyouneed.models.show_attend_tell import ShowAttendTell
from allyouneed.tasks.captioning import CHANNELS, SIDE
from allyouneed.text.pictures import FIRST_CHARACTER
from allyouneed.training import load_recipe, train

SYSTEMS = {
    "lstm": ("show-attend-tell-emoji", []),
    "transformer": ("captioning-transformer-emoji", []),
    "blind": ("show-attend-tell-emoji", ["model.blind=true"]),
}
SCORES = {"bleu": 1.0, "chrf": 1.0, "exact": 100.0, "word_recall": 100.0, "word_precision": 100.0, "loss": 1.0}
SHOWN, WORDS = 6, 7  # number of images, and of words per image, to draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--held-out", default="emoji", choices=["emoji", "drawing"], help="what the test split holds")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="a setting of the recipes")
    parser.add_argument("--picture", type=Path, help="PNG file for the attention maps; not drawn by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.systems.split(",")
    runs = {name: [] for name in names}
    for seed in range(1, options.seeds + 1):
        for name in names:
            runs[name].append(run(options, name, seed))
            print(f"# {name}, seed {seed}: {runs[name][-1]}", flush=True)
    print(f"| decoder | {' | '.join(SCORES)} | CPU seconds |\n|{' --- |' * (len(SCORES) + 2)}")
    for name, found in runs.items():
        cells = [spread([one[score] for one in found]) for score in SCORES]
        print(f"| {name} | {' | '.join(cells)} | {statistics.mean(one['seconds'] for one in found):.0f} |")
    if options.picture:
        draw(options.out / options.held_out / "lstm-1", options.picture)


def spread(values: list[float]) -> str:
    """Format the mean and the range over seeds."""
    return f"{statistics.mean(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def run(options: argparse.Namespace, name: str, seed: int) -> dict[str, float]:
    """Train one model; return its test scores and CPU seconds of training, which are stored."""
    out: Path = options.out / options.held_out / f"{name}-{seed}"
    recipe_name, more = SYSTEMS[name]
    recipe = load_recipe(recipe_name, sets=[f"seed={seed}", f"task.held_out={options.held_out}", *more, *options.sets])

    def measure() -> dict[str, float]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        folder = train(recipe, out)
        seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        scores = evaluate_split(load_folder(folder), "test", recipe.decode, lambda _: None)
        found = {score.name: score.value * SCORES[score.name] for score in scores if score.name in SCORES}
        return {**found, "seconds": seconds}

    return cached_result(out, recipe, measure)


def draw(folder: Path, path: Path) -> None:
    """Draw the attention of a model for each token of a few images."""
    from matplotlib.figure import Figure

    bundle = load_folder(folder)
    model, codec = bundle.model, bundle.codec
    assert isinstance(model, ShowAttendTell)
    recipe = recipe_of(bundle)
    data = recipe.task.prepare(folder / "data", recipe.seed)
    examples = data.examples("test")
    answers = [best[0] for best in translate(model, codec, [text for text, _ in examples], recipe.decode)]
    # Choose names that differ: five skin tones of one hand would be redundant.
    best: dict[str, int] = {}
    for item in sorted(range(len(examples)), key=lambda item: -answers[item].score):
        right = set(answers[item].text.lower().split()) & set(examples[item][1].lower().split())
        if right and len(answers[item].text.split()) > 1:
            best.setdefault(answers[item].text.split(":")[0], item)
    chosen = list(best.values())[:SHOWN]
    figure = Figure(figsize=(1.25 * (WORDS + 1), 1.6 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), WORDS + 1, squeeze=False)
    side = round(model.config.cells() ** 0.5)
    for row, item in zip(axes, chosen, strict=True):
        text, name = examples[item]
        image = np.array([ord(character) - FIRST_CHARACTER for character in text]).reshape(SIDE, SIDE, CHANNELS)
        ids = codec.encode_target(answers[item].text)
        with evaluating(model), record_maps(model) as maps:
            state = model.condition(torch.tensor([codec.encode_source(text)]))
            model.hidden(torch.tensor([[*codec.encode_prompt(), *ids[:-1]]]), state)
        weights_TS = maps[-1].weights_BHTS[0, 0]
        for axis in row:
            axis.axis("off")
        row[0].imshow(image)
        row[0].set_title(textwrap.fill(f"“{name}”", 20), fontsize=6.5)
        for axis, token, weights_S in zip(row[1:], ids, weights_TS, strict=False):
            grid = weights_S.reshape(side, side).numpy()
            axis.imshow(image, alpha=0.35, extent=(0, side, side, 0))
            axis.imshow(grid, cmap="Blues", alpha=0.75, extent=(0, side, side, 0), interpolation="bilinear", vmin=0)
            axis.set_title(codec.decode_target([token]) or "(end)", fontsize=9, fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
