"""llama.cpp for language_speed.py: its C interface through ctypes, and a folder of Hugging Face's Llama as GGUF.

There is no server and no HTTP: each token is one `llama_decode` and the largest of its logits. All settings are
llama.cpp's own, except for the number of threads. With float32 weights everything is computed in float32: its fused
attention and its cache of keys and values would be in float16, and change some tokens.

The library is that of the package `xllamacpp` (its wheel is compiled for AVX2), or any `libllama.so`, such as one that
is compiled for the processor at hand.
"""

import ctypes
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FORMATS = ("float32", "bfloat16", "q8_0")  # of GGUF files
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


# Places among the parameters of a context: fused attention (-1: if faster), types of keys and values (1: float16).
_FUSED, _KEYS, _VALUES = 13, 26, 27


class _Parameters(ctypes.Structure):
    """Parameters of a model or a context as the library fills them, with room for more than they have."""

    _fields_ = [("numbers", ctypes.c_int32 * 128)]


class _Tokens(ctypes.Structure):
    """struct llama_batch."""

    _fields_ = [("count", ctypes.c_int32), ("arrays", ctypes.c_void_p * 6)]


def find_library() -> Path | None:
    """Return the library of xllamacpp, or None if the package is not installed."""
    found = importlib.util.find_spec("xllamacpp")
    folders = (found.submodule_search_locations or []) if found else []
    return next((path for folder in folders for path in Path(folder).glob("xllamacpp*.so")), None)


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library, silence its log and declare the functions that are called."""
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    for name, result, parameters in [
        ("llama_log_set", None, [pointer, pointer]),
        ("llama_backend_init", None, []),
        ("llama_model_default_params", _Parameters, []),
        ("llama_context_default_params", _Parameters, []),
        ("llama_model_load_from_file", pointer, [ctypes.c_char_p, _Parameters]),
        ("llama_init_from_model", pointer, [pointer, _Parameters]),
        ("llama_set_n_threads", None, [pointer, number, number]),
        ("llama_get_memory", pointer, [pointer]),
        ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
        ("llama_batch_get_one", _Tokens, [pointer, number]),
        ("llama_decode", number, [pointer, _Tokens]),
        ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, number]),
        ("llama_print_system_info", ctypes.c_char_p, []),
    ]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)(lambda *_: None)
    library.kept = silent  # type: ignore[attr-defined]
    library.llama_log_set(ctypes.cast(silent, pointer), None)
    library.llama_backend_init()
    return library


def load(library: Any, file: Path, prompt: list[int], threads: int, words: int) -> Callable[[int], list[int]]:
    """Load a GGUF file and return a function that decodes greedily after the prompt."""
    model = library.llama_model_load_from_file(str(file).encode(), library.llama_model_default_params())
    settings = library.llama_context_default_params()
    numbers = settings.numbers
    assert [numbers[_FUSED], numbers[_KEYS], numbers[_VALUES]] == [-1, 1, 1], "another layout of the parameters"
    if file.stem == "float32":
        numbers[_FUSED] = numbers[_KEYS] = numbers[_VALUES] = 0
    context = model and library.llama_init_from_model(model, settings)
    if not context:
        raise SystemExit(f"{file}: llama.cpp cannot load it")
    library.llama_set_n_threads(context, threads, threads)

    def advance(tokens: list[int]) -> int:
        given = (ctypes.c_int32 * len(tokens))(*tokens)
        if library.llama_decode(context, library.llama_batch_get_one(given, len(tokens))):
            raise SystemExit(f"{file}: llama.cpp cannot decode it")
        logits = np.ctypeslib.as_array(library.llama_get_logits_ith(context, -1), (words,))
        return int(logits.argmax())

    def generate(tokens: int) -> list[int]:
        library.llama_memory_clear(library.llama_get_memory(context), True)
        found = [advance(prompt)]
        while len(found) < tokens:
            found.append(advance(found[-1:]))
        return found

    return generate


def write_gguf(folder: Path, file: Path, weights: str) -> None:
    """Write a folder of Hugging Face's Llama as GGUF, without a tokenizer; vectors stay in float32, as everywhere."""
    import gguf
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    kind = {
        "float32": gguf.GGMLQuantizationType.F32,
        "bfloat16": gguf.GGMLQuantizationType.BF16,
        "q8_0": gguf.GGMLQuantizationType.Q8_0,
    }[weights]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in load_file(folder / "model.safetensors").items():
        numbers = tensor.float()
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates neighbours, not halves
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            halves = numbers.unflatten(0, (heads, 2, -1))
            numbers = halves.transpose(1, 2).reshape(numbers.shape)
        one = kind if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_name(name), gguf.quants.quantize(numbers.numpy(), one), raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(theirs: str) -> str:
    stem = theirs.removesuffix(".weight")
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in whole:
        return f"{whole[stem]}.weight"
    _, _, number, rest = stem.split(".", 3)
    return f"blk.{number}.{_LAYER[rest]}.weight"
