"""One file for each family of architectures, and a table of them by `model_type` of config.json."""

from allyouneed.interop.hf.architectures.bart import BART, MARIAN, MBART, PEGASUS
from allyouneed.interop.hf.architectures.base import Architecture
from allyouneed.interop.hf.architectures.bert import BERT, BIG_BIRD, LONGFORMER
from allyouneed.interop.hf.architectures.bloom import BLOOM
from allyouneed.interop.hf.architectures.gpt2 import GPT2
from allyouneed.interop.hf.architectures.llama import LLAMA, MISTRAL
from allyouneed.interop.hf.architectures.reformer import REFORMER
from allyouneed.interop.hf.architectures.t5 import T5

_ALL = (MARIAN, PEGASUS, BART, MBART, T5, GPT2, LLAMA, MISTRAL, BLOOM, BERT, LONGFORMER, BIG_BIRD, REFORMER)
ARCHITECTURES: dict[str, Architecture] = {one.type: one for one in _ALL}
