"""Is `allyouneed.load` as fast as the command line? README's Python snippet against `allyouneed translate`.

    python benchmarks/load_speed.py

Both translate the same 24 number words with the demo's model (random weights: the time does not depend on them much,
and every answer has as many tokens as the search permits). Two CPU times, best of 5, one process each, interleaved:

    whole process    import, load, translate, exit
    24 texts         the translation alone, in a process that has loaded the model and translated once

The ratio of both should be at most 1.1.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from num2words import num2words

from allyouneed.folder import save_folder
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols
from allyouneed.training import load_recipe

REPEATS, LIMIT = 5, 1.1
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß -,"
TEXTS = [num2words(number) for number in range(3, 10**6, 10**6 // 24)][:24]
SNIPPET = """
import sys, allyouneed
bundle = allyouneed.load(sys.argv[1])
print(*bundle.translate(sys.stdin.read().splitlines()), sep="\\n")
"""
IN_PROCESS = """
import json, sys, time
texts, side = sys.stdin.read().splitlines(), sys.argv[2]
if side == "python":
    import allyouneed
    bundle = allyouneed.load(sys.argv[1])
    run = lambda: bundle.translate(texts)
else:
    from allyouneed.cli.model_options import open_model
    from allyouneed.decode import translate
    from allyouneed.evaluation.settings import search_config
    bundle = open_model(sys.argv[1])
    search = search_config(bundle, {})
    run = lambda: [ranked[0].text for ranked in translate(bundle.model, bundle.codec, texts, search)]
run()
times = []
for _ in range(5):
    begin = time.process_time()
    found = run()
    times.append(time.process_time() - begin)
print(json.dumps([min(times), found]))
"""


def main() -> int:
    """Print both times of both sides and their ratios; return 1 if one is above the limit."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = random_folder(Path(temporary) / "model")
        sides = {
            "whole process": {
                "python": [sys.executable, "-c", SNIPPET, folder],
                "command": [sys.executable, "-m", "allyouneed", "translate", folder],
            },
            "24 texts": {side: [sys.executable, "-c", IN_PROCESS, folder, side] for side in ("python", "command")},
        }
        worst = 0.0
        for what, commands in sides.items():
            best = {side: float("inf") for side in commands}
            for _ in range(REPEATS):
                found = {side: run(command, inside=what != "whole process") for side, command in commands.items()}
                if found["python"][1] != found["command"][1]:
                    raise SystemExit(f"{what}: the two sides translate differently")
                best = {side: min(best[side], found[side][0]) for side in commands}
            ratio = best["python"] / best["command"]
            worst = max(worst, ratio)
            print(
                f"{what:14} python {1000 * best['python']:8.1f} ms   command {1000 * best['command']:8.1f} ms", end=""
            )
            print(f"   CPU, best of {REPEATS}   ratio {ratio:.3f}")
    print(f"README's snippet against the command line: {worst:.3f} (at most {LIMIT})")
    return int(worst > LIMIT)


def random_folder(path: Path) -> str:
    """Write a folder with the demo's model and random weights."""
    torch.manual_seed(1)
    recipe, letters = load_recipe("numbers-en-de"), of_symbols(LETTERS, "characters")
    model = recipe.model.build(Sizes(letters.size, letters.size, shared=True))
    return str(save_folder(path, model, Codec(letters, letters), recipe, ""))


def run(command: list[str], inside: bool) -> tuple[float, list[str]]:
    """Return the CPU seconds of a process, or those that it reports itself, and its translations."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    given = "\n".join(TEXTS) + "\n"
    out = subprocess.run(command, input=given, env=environment, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if inside:
        seconds, found = json.loads(out)
        return seconds, found
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, out.splitlines()


if __name__ == "__main__":
    sys.exit(main())
