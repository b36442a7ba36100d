"""Tiny random Transformers as bundles, and a Python interpreter that sees only the named packages."""

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from allyouneed.config import parse
from allyouneed.folder import Bundle
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS, EOS, PAD
from allyouneed.text.tokenizer import Tokenizer, TokenizerConfig, of_symbols, train

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß -"
POSITIONS: list[Any] = [
    "none",
    "sinusoidal",
    {"type": "sinusoidal", "halves": True},
    {"type": "learned", "max_length": 80},
    {"type": "shaw", "clip": 4},
    {"type": "t5", "buckets": 8, "max_distance": 12},
    {"type": "rotary", "base": 500.0},
]
SETTINGS: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "pre", "normalisation": "rms", "epsilon": 1e-3, "feedforward": "swiglu"},
    {"feedforward": "geglu", "feedforward_bias": False},
    {"feedforward": "gelu-tanh", "embedding_norm": True},
    {"feedforward": "silu", "embedding_scale": False, "output_bias": True},
    {"tied": False, "mixer": {"bias": False}},
    {"mixer": {"key_heads": 2}, "positions": "rotary"},
    {"mixer": {"key_width": 6, "value_width": 6}},
]
NORMED: dict[str, Any] = {"norm": "pre", "normalisation": "rms", "mixer": {"head_norm": 1e-6, "bias": "inputs"}}
AROUND: dict[str, Any] = {"norm": "both", "normalisation": "rms", "mixer": {"window": 3}}
PARALLEL: dict[str, Any] = {"parallel": True, "norm": "pre", "feedforward": "gelu"}
PARTIAL: dict[str, Any] = {"positions": {"type": "rotary", "pairs": 3}, "mixer": {"heads": 2, "key_heads": 1}}


def bundle_of(kind: str, settings: dict[str, Any], sharp: float = 1.0, paired: bool = True) -> Bundle:
    """Return a random model of kind "encoder-decoder" or "decoder" that reads and generates letters."""
    mixer = settings.get("mixer", {})  # settings of softmax attention, or another mixer
    if isinstance(mixer, dict) and "type" not in mixer:
        mixer = {"type": "softmax", "heads": 4, **mixer}
    tree = {"width": 16, "hidden": 24, **settings, "mixer": mixer}
    letters = of_symbols(LETTERS, "characters")
    sizes = Sizes(letters.size, letters.size + 3, shared=False)  # the target table has unused rows
    model: Model
    if kind == "decoder":
        model = parse(DecoderConfig, {"layers": 2, **tree}).build(sizes)
    else:
        model = parse(EncoderDecoderConfig, {"encoder_layers": 1, "decoder_layers": 2, **tree}).build(sizes)
    randomise(model, sharp)
    codec = Codec(letters, letters) if kind == "encoder-decoder" or paired else Codec(target=letters)
    return Bundle(Path("model"), model.eval(), codec, {"about": "random letters"}, "", "")


def randomise(model: Model, sharp: float) -> None:
    """Add noise to every parameter, since zeros and ones hide mistakes; `sharp` above 1 sharpens the output."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.head.weight_VD.mul_(sharp)
        model.head.weight_VD[EOS] *= 1.5
        if model.head.bias_V is not None:
            model.head.bias_V[[PAD, BOS]] = -12.0  # as in trained models, where they are never a target


def never_ending(bundle: Bundle) -> Bundle:
    """Change the model of a bundle to generate one letter without end, and return the bundle."""
    with torch.no_grad():
        head: Any = bundle.model.head
        assert head.bias_V is None
        head.bias_V = torch.nn.Parameter(torch.full((head.weight_VD.shape[0],), -30.0))
        head.bias_V[bundle.codec.both()[1].vocabulary["b"] if bundle.codec.source else 10] = 30.0
    return bundle


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokeniser."""
    return train(["a man in a blue shirt is standing on a ladder"] * 3, TokenizerConfig(kind="bpe", size=270))


def program(folder: Path) -> str:
    """Return the Python program in the README of an exported folder."""
    found = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def run_alone(folder: Path, stdin: str, packages: Sequence[str], sandbox: Path) -> str:
    """Run the program of a README without site-packages; only the named packages can be imported."""
    for name in packages:
        spec = find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        place = Path(next(iter(spec.submodule_search_locations)))
        for path in (place, *place.parent.glob(f"{place.name}.libs")):  # shared libraries of wheels
            (sandbox / path.name).symlink_to(path)
    forbidden = "[name for name in ('allyouneed', 'torch', 'transformers') if find_spec(name)]"
    before = (
        f"import sys\nsys.path.append({str(sandbox)!r})\nfrom importlib.util import find_spec\nassert not {forbidden}\n"
    )
    script = sandbox / "program.py"
    script.write_text(before + program(folder), encoding="utf-8")
    done = run_program(folder, stdin, sandbox)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_program(folder: Path, stdin: str, sandbox: Path) -> subprocess.CompletedProcess[str]:
    """Run the program that `run_alone` has written, without checking its exit status."""
    command = [sys.executable, "-I", "-S", str(sandbox / "program.py")]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=folder, timeout=600, check=False)
