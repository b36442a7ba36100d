"""Small random Hugging Face folders, one of each architecture and class that can be imported (round_trips.py)."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hf_folders as their
import spm_folders
import transformers

from allyouneed.interop.hf.architectures import ARCHITECTURES

Maker = Callable[[Path], tuple[Path, Any]]


def cases() -> dict[str, Maker]:
    """Return how to make a folder of each architecture and class."""
    found: dict[str, Maker] = {
        "marian (OPUS-MT, .spm)": spm_folders.opus,
        "pegasus": their.pegasus,
        "bart": their.bart,
        "mbart": their.mbart,
        "m2m_100": their.m2m_100,
        "led": their.led,
        "t5 (spiece.model)": spm_folders.t5,
        "t5 v1.1": partial(their.t5_untied, declared=True),
        "gpt2": their.gpt2,
        "opt": their.opt,
        "llama (tokenizer.model)": spm_folders.llama,
        "llama (tokenizer.json)": partial(their.llama, tie_word_embeddings=True),
        "mistral": their.mistral,
        "mistral (window)": partial(their.like_llama, kind="Mistral", sliding_window=4),
        "qwen2": their.qwen2,
        "qwen3": their.qwen3,
        "gemma": their.gemma,
        "gemma2": their.gemma2,
        "gpt_neox": their.gpt_neox,
        "bloom": their.bloom,
        "reformer": their.reformer,
    }
    kinds = ("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "RoFormer", "Longformer", "BigBird", "FNet")
    for kind in (*kinds, "Nystromformer"):
        heads = their.transformers
        for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"):
            name = kind + head
            if hasattr(heads, name) and any(name in one.classes for one in ARCHITECTURES.values()):
                found[name] = partial(their.encoder, kind=kind, head=head)
    return found


def tokenizer_of(folder: Path) -> Any:
    """Return the tokenizer of a folder. AutoTokenizer ignores the splitter of tokenizer.json for some architectures."""
    settings = (
        json.loads((folder / "tokenizer_config.json").read_text())
        if (folder / "tokenizer_config.json").exists()
        else {}
    )
    fast = settings.get("tokenizer_class") == "PreTrainedTokenizerFast"
    return (transformers.PreTrainedTokenizerFast if fast else transformers.AutoTokenizer).from_pretrained(folder)
