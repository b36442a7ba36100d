"""Malicious or damaged folders are refused with one line, and none of their code is run."""

import json
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hf_folders as their
import pytest
import torch
from safetensors.torch import load_file, save_file

from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import load_folder
from allyouneed.interop.hf.export import export_folder
from allyouneed.interop.hf.load import import_folder, read_folder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an undamaged folder."""
    folder, _ = their.gpt2(tmp_path_factory.mktemp("intact") / "gpt2")
    return folder


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    shutil.copytree(intact, tmp_path / "folder")
    return tmp_path / "folder"


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        import os

        return os.system, ("touch exploded",)


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))


def pickle_as_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def long_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")


def overlapping(folder: Path) -> None:
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in ("a", "b")}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)


def link_out(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.rename(folder.parent / "elsewhere.safetensors")
    path.symlink_to(folder.parent / "elsewhere.safetensors")


def link_of_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/etc/hostname")


def circle(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")


def split_model(folder: Path, name: str, count: int = 1) -> None:
    """Split the model into files that an index names."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, name)}))


def index_up(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent / "up.safetensors")
    split_model(folder, "../up.safetensors")


def index_absolute(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder.parent / "up.safetensors")
    split_model(folder, str(folder.parent / "up.safetensors"))


def index_of_pickle(folder: Path) -> None:
    (folder / "evil.bin").write_bytes(pickle.dumps(Bomb()))
    split_model(folder, "evil.bin")


def index_of_nothing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{}")


def config_with(**fields: object) -> Callable[[Path], None]:
    return lambda folder: their.change_config(folder, **fields)


def deep(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000 + "]" * 100_000)


def huge(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "x": "y" * (5 << 20)}))


def deep_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": ' + "[" * 100_000 + "]" * 100_000 + "}")


def tokenizer_with(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tree = json.loads((folder / "tokenizer.json").read_text())
        change(tree)
        (folder / "tokenizer.json").write_text(json.dumps(tree))

    return write


SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "vocab.json")


def other_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return write


LLAMA = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40}
LLAMA |= {"max_position_embeddings": 64}
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle": (as_pickle, r"pytorch_model.bin is a pickle, which can run code and is never opened"),
    "pickle under another name": (pickle_as_safetensors, r"not a safetensors file"),
    "cut": (cut, r"not a safetensors file"),
    "long header": (long_header, r"not a safetensors file \(its header does not fit into it\)"),
    "overlapping": (overlapping, r"not a safetensors file"),
    "link": (link_out, r"model.safetensors: is a link that leaves the folder"),
    "link of the config": (link_of_config, r"config.json: is a link that leaves the folder"),
    "circle": (circle, r"config.json: not readable"),
    "index up": (index_up, r"'../up.safetensors' is a path, not the name of a file in this folder"),
    "index absolute": (index_absolute, r"is a path, not the name of a file in this folder"),
    "index of a pickle": (index_of_pickle, r"'evil.bin' is not a safetensors file"),
    "index of nothing": (index_of_nothing, r"has no weight_map"),
    "auto_map": (config_with(auto_map={"AutoModel": "evil.Model"}), r"auto_map refers to code"),
    "trust": (config_with(trust_remote_code=True), r"trust_remote_code refers to code"),
    "unknown field": (config_with(rotary_gizmo=3), r"unsupported fields: rotary_gizmo"),
    "unknown model": (
        config_with(model_type="gpt3"),
        r"config.json: model_type: 'gpt3' is not supported; supported: bart",
    ),
    "unknown class": (
        config_with(architectures=["GPT2DoubleHeadsModel"]),
        r"architectures: .* should name one of GPT2LMHeadModel, GPT2Model",
    ),
    "other function": (config_with(activation_function="evil"), r"activation_function: 'evil' is not supported"),
    "other scores": (
        config_with(scale_attn_weights=False),
        r"scale_attn_weights: False; only",
    ),
    "too many layers": (config_with(n_layer=10**9), r"n_layer: 1000000000; should be an integer from 0 to 4,096"),
    "a layer more": (config_with(n_layer=3), r"tensor transformer.h.2.ln_1.weight is missing"),
    "a layer less": (
        config_with(n_layer=1),
        r"tensor transformer.h.1.attn.c_attn.bias is not part of this architecture",
    ),
    "too wide": (config_with(n_embd=3 << 20), r"far larger than the weights|has shape"),
    "no number": (config_with(n_head="3"), r"n_head: '3'; should be an integer"),
    "heads": (config_with(n_head=7), r"model.width 24 is not divisible by mixer.heads 7"),
    "ids beyond": (config_with(eos_token_id=10**6), r"config.json: eos_token_id: 1000000, but the model has 300"),
    "two pads": (config_with(pad_token_id=[0, 1]), r"config.json: pad_token_id: \[0, 1\]; should be one id"),
    "ends": (config_with(eos_token_id=["x"]), r"eos_token_id: \['x'\]; should be an id, or a list of ids"),
    "no end": (config_with(eos_token_id=None), r"config.json: eos_token_id is missing"),
    "other positions": (
        config_with(
            model_type="llama", architectures=["LlamaForCausalLM"], **LLAMA, rope_scaling={"rope_type": "yarn"}
        ),
        r"config.json: rope_scaling: rope_type: 'yarn' is not supported; supported: default, linear, llama3",
    ),
    "interleaved": (config_with(rope_interleaved=True), r"unsupported fields: rope_interleaved \(True\)"),
    "deep": (deep, r"config.json: not JSON"),
    "huge": (huge, r"config.json: more than 4,194,304 bytes"),
    "deep tokeniser": (deep_tokenizer, r"tokenizer.json: not"),
    "no tokeniser": (no_tokenizer, r"has no tokenizer.json and no SentencePiece model \(it has vocab.json"),
    "slow expression": (
        tokenizer_with(lambda tree: tree.update(pre_tokenizer=SLOW)),
        r"pre_tokenizer: Split: pattern = .* is not an allowed value",
    ),
    "slow expression in a sequence": (
        tokenizer_with(lambda tree: tree.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [SLOW]})),
        r"pre_tokenizer: Split: pattern = .* is not an allowed value",
    ),
    "long prefix": (
        tokenizer_with(lambda tree: tree.update(normalizer={"type": "Prepend", "prepend": "x" * 65})),
        r"normalizer: Prepend: prepend = .* is not an allowed value",
    ),
    "other decoder": (
        tokenizer_with(
            lambda tree: tree.update(
                decoder={"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": True}
            )
        ),
        r"decoder: type 'CTC' should be one of",
    ),
    "prefix that is cut": (
        tokenizer_with(lambda tree: tree["model"].update(continuing_subword_prefix="ää")),
        r"tokenizer.json: not a tokenizer",
    ),
    "dropout of merges": (
        tokenizer_with(lambda tree: tree["model"].update(dropout=0.5)),
        r"model BPE: dropout = .* is not an allowed value",
    ),
    "no config": (
        lambda folder: (folder / "config.json").unlink(),
        r"has no config.json; it is not a folder of Hugging Face$",
    ),
    "one weight too many": (other_tensors(lambda all: all.update(extra=torch.ones(3))), r"tensor extra is not part of"),
    "one too few": (other_tensors(lambda all: all.pop("transformer.ln_f.bias")), r"transformer.ln_f.bias is missing"),
    "another shape": (
        other_tensors(lambda all: all.update({"transformer.ln_f.bias": torch.ones(3)})),
        r"tensor decoder.norm.bias has shape 3, the model needs 24",
    ),
    "integers": (
        other_tensors(lambda all: all.update({"transformer.ln_f.bias": torch.ones(24, dtype=torch.int8)})),
        r"tensor decoder.norm.bias has dtype torch.int8",
    ),
    "a tie that is none": (
        other_tensors(lambda all: all.update({"lm_head.weight": torch.ones_like(all["transformer.wte.weight"])})),
        r"lm_head.weight is not transformer.wte.weight, but config.json ties them",
    ),
}


@pytest.mark.no_shapes
@pytest.mark.parametrize("name", HOSTILE)
def test_refused_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    change, message = HOSTILE[name]
    change(folder)
    if name in ("link", "link of the config", "circle") or (folder / "generation_config.json").exists():
        (folder / "generation_config.json").unlink(missing_ok=True)  # it has its own ids
    monkeypatch.chdir(folder.parent)
    with pytest.raises(FolderError, match=message) as refusal:
        read_folder(folder)
    assert "\n" not in str(refusal.value)
    assert not list(folder.parent.rglob("exploded"))


def test_a_pickle_beside_safetensors_is_ignored(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    read_folder(folder)
    assert not list(folder.parent.rglob("exploded"))


def test_a_model_in_several_files(intact: Path, folder: Path) -> None:
    """Two files and an index give the same model as one file."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    places = {name: f"model-0000{1 + n % 2}-of-00002.safetensors" for n, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    whole, made = read_folder(intact).model.state_dict(), read_folder(folder).model.state_dict()
    assert whole.keys() == made.keys()
    assert all(torch.equal(whole[name], made[name]) for name in whole)
    index.write_text(json.dumps({"weight_map": places | {"more": places[names[0]]}}))
    with pytest.raises(FolderError, match=r"more is not in model-00001-of-00002.safetensors"):
        read_folder(folder)
    index.write_text(json.dumps({"weight_map": {name: places[name] for name in names[1:]}}))
    with pytest.raises(FolderError, match=f"{names[0]} is in, but not stated to be in, model-00001"):
        read_folder(folder)
    (folder / places[names[0]]).unlink()
    with pytest.raises(FolderError, match=r"model-00001-of-00002.safetensors is missing, which .*index.json lists"):
        read_folder(folder)


def test_reading_never_imports_their_library(intact: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from allyouneed.interop.hf.load import read_folder;"
        f"read_folder(Path({str(intact)!r})); sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.no_shapes
def test_text_that_spells_a_control_token_stays_text(folder: Path) -> None:
    read = read_folder(folder)
    ids = read.codec.encode_prompt("<|endoftext|>")
    assert len(ids) > 1
    assert not set(ids) & {0, 1, 2, 3}
    assert read.codec.decode_target(ids) == "<|endoftext|>"


def test_an_export_writes_no_files_that_a_model_folder_smuggles(folder: Path, tmp_path: Path) -> None:
    import_folder(folder, tmp_path / "ours")
    bundle = load_folder(tmp_path / "ours")
    assert bundle.codec.origin is not None
    origin = replace(bundle.codec.origin, files={"pytorch_model.bin": pickle.dumps(Bomb())})
    with pytest.raises(ConfigError, match=r"original.json: 'pytorch_model.bin' is not a file of a tokenizer"):
        export_folder(replace(bundle, codec=replace(bundle.codec, origin=origin)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
