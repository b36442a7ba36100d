"""Loading and importing take hardly more memory than the file, and half precision stays half precision."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from allyouneed import kernels

pytestmark = [pytest.mark.no_shapes, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
WIDTH, HIDDEN, LAYERS, WORDS = 512, 1536, 9, 4000  # 32 million parameters
SLACK = 24 << 20  # bytes: tokenizer, code that is loaded late, the largest tensor twice
# The peak while it works, without what the imports took.
PROGRAM = """
import sys
from pathlib import Path
import torch
import allyouneed, allyouneed.pipeline
from allyouneed import kernels
from allyouneed.interop.hf.load import import_folder
from allyouneed.malloc import keep_freed_memory

def kilobytes(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

def used():
    if sys.argv[1] == "import":
        import_folder(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        loaded = allyouneed.load(sys.argv[2], int8=sys.argv[1] == "int8")
        loaded.generate("w10 w11", temperature=0, max_length=2)

kernels.usable(torch.empty(0))
keep_freed_memory()
before = kilobytes("VmRSS")
used()
print((kilobytes("VmHWM") - before) * 1024)
"""


def peak(*command: str) -> int:
    """Return the peak memory of a command in bytes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Llama in bfloat16, split into two files, and the same imported."""
    theirs, ours = (tmp_path_factory.mktemp("memory") / name for name in ("theirs", "ours"))
    theirs.mkdir()
    torch.manual_seed(0)
    shapes = {"model.embed_tokens": (WORDS, WIDTH), "model.norm": (WIDTH,)}
    for layer in range(LAYERS):
        here = f"model.layers.{layer}"
        shapes |= {f"{here}.self_attn.{part}_proj": (WIDTH, WIDTH) for part in "qkvo"}
        shapes |= {f"{here}.mlp.{part}_proj": (HIDDEN, WIDTH) for part in ("gate", "up")}
        shapes |= {f"{here}.mlp.down_proj": (WIDTH, HIDDEN)}
        shapes |= {f"{here}.{norm}_layernorm": (WIDTH,) for norm in ("input", "post_attention")}
    tensors = {f"{name}.weight": (torch.randn(shape) * 0.02).bfloat16() for name, shape in shapes.items()}
    names = list(tensors)
    files = {"model-00001-of-00002.safetensors": names[:30], "model-00002-of-00002.safetensors": names[30:]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, theirs / file)
    places = {name: file for file, held in files.items() for name in held}
    (theirs / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "vocab_size": WORDS,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (theirs / "config.json").write_text(json.dumps(config))
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(3, WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(theirs / "tokenizer.json"))
    size = sum(tensor.nbytes for tensor in tensors.values())
    assert peak("import", str(theirs), str(ours)) < 0.6 * size + SLACK
    return {"theirs": theirs, "ours": ours}


def test_an_imported_folder_has_the_weights_as_they_were(folders: dict[str, Path]) -> None:
    found = load_file(folders["ours"] / "model.safetensors")
    assert {tensor.dtype for name, tensor in found.items() if name != "head.bias_V"} == {torch.bfloat16}
    assert sum(file.stat().st_size for file in folders["ours"].glob("*.safetensors")) < 1.01 * sum(
        file.stat().st_size for file in folders["theirs"].glob("*.safetensors")
    )


@pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler: weights are float32")
@pytest.mark.parametrize(("way", "times"), [("load", 1.3), ("int8", 1.0)])
def test_memory_of_loading(folders: dict[str, Path], way: str, times: float) -> None:
    size = (folders["ours"] / "model.safetensors").stat().st_size
    assert peak(way, str(folders["ours"])) < times * size + SLACK
