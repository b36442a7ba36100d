"""Check that renaming and moving code changed no number.

    python tests/golden/identity.py            print the results of this tree as JSON
    python tests/golden/identity.py --write    store them in identity.json
    python tests/golden/identity.py --check    compare with identity.json; exit 1 on a difference

Two things are hashed: the weights after a deterministic run of the demo recipe (500 steps, one core), and the ids that
greedy and beam searches find on random models of every kind, in float64 and, packed, in float32. The numbers depend on
the processor and on torch's version, so compare before and after a change on one machine.
"""

# ruff: noqa: E402  the settings of the contract tests are found by their folder

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("", "contracts")]

from mixer_contracts import CONTRACTS
from test_models import SMALL as MODEL_SETTINGS

from allyouneed.config import parse
from allyouneed.decode import SearchConfig, search
from allyouneed.mixers import MIXERS
from allyouneed.models import MODELS, Model
from allyouneed.sizes import Sizes
from allyouneed.training import load_recipe, train
from allyouneed.weights import model_tensors

FILE = Path(__file__).with_name("identity.json")
IDS = 13
SOURCES = [[5, 6, 7, 8, 9, 2], [7, 2], [12, 11, 10, 3, 3, 3, 4, 5, 2]]
SEARCHES = [SearchConfig(beam=1, max_length=12), SearchConfig(beam=4, n_best=3, max_length=12)]


def demo_weights() -> str:
    """Train the demo recipe deterministically; return the hash of its weights."""
    with tempfile.TemporaryDirectory() as folder:
        model = train(load_recipe("numbers-en-de", sets=["train.deterministic=true"]), Path(folder) / "run", cores=1)
        return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


def searched(optimize: Any) -> dict[str, list[list[list[int]]]]:
    """Return the ids that each search finds, for random models of every kind and mixer."""
    found = {}
    for name, settings in _cases():
        for packed in (False, True):
            model = _random_model(*settings)
            if packed:
                model = model.float()
                optimize(model)
            ids = [[h.ids for h in ranked] for config in SEARCHES for ranked in search(model, SOURCES, config)]
            found[f"{name}{' packed' if packed else ''}"] = ids
    return found


def _cases() -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    cases = []
    for name, several in MODEL_SETTINGS.items():
        if MODELS[name].kind != "encoder" and name != "show-attend-tell":  # whose sources are images
            cases += [(f"{name}{i}", (name, settings)) for i, settings in enumerate(several)]
    wide = {"width": 12, "hidden": 20, "dropout": 0.0, "layers": 2}
    for name in MIXERS:
        for i, config in enumerate(CONTRACTS[name].settings):
            if "causal" in config.roles:
                tree = {**wide, "width": 60, "mixer": config.model_dump()}  # 60: for any number of heads
                cases.append((f"decoder {name}{i}", ("decoder", tree)))
    for positions in ("sinusoidal", "rotary", "alibi", "t5"):
        mixer = {"type": "softmax", "heads": 2}
        tree = {**wide, "width": 16, "mixer": mixer, "positions": positions, "norm": "pre"}
        cases.append((f"decoder {positions}", ("decoder", tree)))
        tree = {key: value for key, value in tree.items() if key != "layers"}
        both = {**tree, "encoder_layers": 2, "decoder_layers": 2}
        cases.append((f"encoder-decoder {positions}", ("encoder-decoder", both)))
    return cases


def _random_model(name: str, settings: dict[str, Any]) -> Model:
    torch.manual_seed(7)
    model = parse(MODELS[name], settings).build(Sizes(IDS, IDS)).double().eval()
    with torch.no_grad():
        for parameter in model_tensors(model).values():
            if parameter.is_floating_point():
                parameter.normal_(std=0.5)
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the result in identity.json")
    parser.add_argument("--check", action="store_true", help="compare the result with identity.json")
    parser.add_argument("--searches", action="store_true", help="searches only: seconds instead of minutes")
    options = parser.parse_args()
    from allyouneed.inference.optimize import optimize_for_inference as optimize

    torch.set_num_threads(1)
    found = searched(optimize)
    result = {
        "torch": torch.__version__,
        "demo_weights": None if options.searches else demo_weights(),
        "searches": {name: hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] for name, ids in found.items()},
        "distinct": len({json.dumps(ids) for ids in found.values()}),
    }
    if options.write:
        FILE.write_text(json.dumps(result, indent=1) + "\n")
    if options.check:
        kept = json.loads(FILE.read_text())
        differing = [key for key in kept["searches"] if kept["searches"][key] != result["searches"].get(key)]
        if not options.searches and kept["demo_weights"] != result["demo_weights"]:
            differing.append("demo_weights")
        what = f"{len(kept['searches'])} searches" + ("" if options.searches else " and the demo's weights")
        print(f"{what}: {', '.join(differing) or 'all the same'}")
        return 1 if differing else 0
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
