"""One file for each family of architectures, and a table of them by `model_type` of config.json."""

from allyouneed.interop.hf.architectures.bart import BART, M2M_100, MARIAN, MBART, PEGASUS
from allyouneed.interop.hf.architectures.base import Architecture
from allyouneed.interop.hf.architectures.bert import (
    BERT,
    BIG_BIRD,
    CAMEMBERT,
    FNET,
    LONGFORMER,
    NYSTROMFORMER,
    ROBERTA,
    ROFORMER,
    XLM_ROBERTA,
)
from allyouneed.interop.hf.architectures.bloom import BLOOM
from allyouneed.interop.hf.architectures.distilbert import DISTILBERT
from allyouneed.interop.hf.architectures.gpt2 import GPT2
from allyouneed.interop.hf.architectures.gpt_neox import GPT_NEOX
from allyouneed.interop.hf.architectures.led import LED
from allyouneed.interop.hf.architectures.llama import GEMMA, GEMMA2, LLAMA, MISTRAL, QWEN2, QWEN3
from allyouneed.interop.hf.architectures.opt import OPT
from allyouneed.interop.hf.architectures.reformer import REFORMER
from allyouneed.interop.hf.architectures.t5 import T5
from allyouneed.interop.hf.architectures.vit import VIT

_TRANSLATORS = (MARIAN, PEGASUS, M2M_100, BART, MBART, LED, T5)
_WRITERS = (GPT2, OPT, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GPT_NEOX, BLOOM, REFORMER)
_ENCODERS = (
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    DISTILBERT,
    ROFORMER,
    LONGFORMER,
    BIG_BIRD,
    FNET,
    NYSTROMFORMER,
    VIT,
)
ARCHITECTURES: dict[str, Architecture] = {one.type: one for one in (*_TRANSLATORS, *_WRITERS, *_ENCODERS)}
