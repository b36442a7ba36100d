"""The engines of decode_speed.py, each in its own process, with the same weights and the same batches.

ours, ours int8                    the torch engine with its kernels, as `allyouneed translate [--int8]` runs it
ours shortlist, ours int8 shortlist    the same with --shortlist
ctranslate2, ctranslate2 int8      our weights through `allyouneed export --to ctranslate2`
generate, generate+malloc          Hugging Face Marian: as its users run it, and with our allocator setting

JoeyNMT is not included: it needs another protobuf than the pinned one, and its command line does not start with the
versions it installs.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from peers import marian, peer_environment

from allyouneed.decode import SearchConfig, search
from allyouneed.folder import load_folder
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.malloc import keep_freed_memory
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.base import Head
from allyouneed.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from allyouneed.shortlist.lexicon import Lexicon
from allyouneed.shortlist.table import SPECIALS, Shortlist, make_shortlist
from allyouneed.sizes import Sizes
from allyouneed.text.specials import BOS, EOS, PAD

SIDES = ("ours", "ours int8", "generate", "generate+malloc", "ctranslate2", "ctranslate2 int8")
LISTED = " shortlist"  # suffix of engines that use a shortlist
EXACT = ("ours", "generate", "generate+malloc", "ctranslate2")  # float32 engines, whose outputs must be equal
NEVER = -1e4
VOCABULARY = 8000
# A random shortlist: words allowed per source word, and how strongly frequent words are preferred. 16 source words then
# allow 375 of 8,000 words, 32 such sources 4,100 together; for Multi30k's 4,000 words it is 320 and 1,836.
BEST, PREFERENCE = 50, 10

Ids = list[list[int]]
Decode = Callable[[Ids, int, int], Ids]  # sources, beam, longest target -> targets


@dataclass(frozen=True)
class Weights:
    """The origin of a model: a folder, or random weights with a vocabulary size and a bias for EOS."""

    folder: str | None = None
    end_bias: float = 0.0
    words: int = VOCABULARY


@dataclass(frozen=True)
class Request:
    """A list of batches to decode, `again` times."""

    weights: Weights
    batches: list[Ids]
    beam: int
    longest: int
    again: int = 1


class Side:
    """An engine process: decodes requests, and returns outputs and times."""

    def __init__(self, name: str, threads: int, label: str | None = None) -> None:
        self.name = label or name
        command = [sys.executable, __file__, name, str(threads)]
        environment = None if name.startswith("ours") else peer_environment()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def decode(self, request: Request) -> tuple[Ids, tuple[float, float]]:
        """Return the targets, and the CPU and wall-clock seconds of decoding them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(asdict(request)), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name}: failed; see its error above")
        targets, cpu, wall = json.loads(answer)
        return targets, (cpu, wall)


def serve(name: str, threads: int) -> None:
    """Serve decoding requests from standard input."""
    torch.set_num_threads(threads)
    if name != "generate":
        keep_freed_memory()
    for line in sys.stdin:
        tree = json.loads(line)
        request = Request(**{**tree, "weights": Weights(**tree["weights"])})
        decode = decoder(name, request.weights, threads)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(request.again):
            targets = [target for batch in request.batches for target in decode(batch, request.beam, request.longest)]
        print(json.dumps([targets, time.process_time() - cpu, time.perf_counter() - wall]), flush=True)


@cache
def decoder(name: str, weights: Weights, threads: int) -> Decode:
    """Return the engine with the weights in its own layout."""
    model = model_of(weights)
    if name.startswith("ours"):
        shortlist = shortlist_of(weights) if name.endswith(LISTED) else None
        optimize_for_inference(model, int8="int8" in name)
        return lambda sources, beam, longest: decode_ours(model, sources, beam, longest, shortlist)
    if name.startswith("ctranslate2"):
        return through_ctranslate2(model, "int8" if name.endswith("int8") else "float32", threads)
    return through_generate(model)


def model_of(weights: Weights) -> EncoderDecoder:
    """Return a trained model, or a random one that never generates PAD or BOS, as the peers would."""
    if weights.folder is not None:
        model = load_folder(weights.folder).model
        assert isinstance(model, EncoderDecoder)
        return with_bias(model, 0.0)
    torch.manual_seed(0)
    config = EncoderDecoderConfig(
        width=256, hidden=1024, mixer=SoftmaxConfig(heads=4), encoder_layers=3, decoder_layers=3
    )
    return with_bias(config.build(Sizes(weights.words, weights.words, shared=True)), weights.end_bias).eval()


def shortlist_of(weights: Weights) -> Shortlist:
    """Return the shortlist of a folder, or a random one in which some words are more likely than others."""
    if weights.folder is not None:
        found = load_folder(weights.folder).shortlist
        if found is None:
            raise SystemExit(f"{weights.folder}: no shortlist; create one with `allyouneed shortlist {weights.folder}`")
        return found
    numbers, words = np.random.default_rng(0), weights.words
    target = SPECIALS + ((words - SPECIALS) * numbers.random((words, BEST)) ** PREFERENCE).astype(np.int64)
    lexicon = Lexicon(np.repeat(np.arange(words), BEST), target.ravel(), np.ones(words * BEST))
    return make_shortlist(lexicon, np.arange(words)[::-1], words, best=BEST, shared=True)


def with_bias(model: EncoderDecoder, end_bias: float) -> EncoderDecoder:
    """Add the same bias for all engines: PAD and BOS never win, EOS wins according to `end_bias`."""
    head = Head(model.head.weight_VD, bias=True)
    assert head.bias_V is not None
    with torch.no_grad():
        head.bias_V[[PAD, BOS]] = NEVER
        head.bias_V[EOS] = end_bias
    model.head = head
    return model


def decode_ours(model: EncoderDecoder, sources: Ids, beam: int, longest: int, shortlist: Shortlist | None) -> Ids:
    config = SearchConfig(beam=beam, length_penalty=0, max_length=longest, batch_tokens=10**9)
    return [found[0].ids for found in search(model, sources, config, shortlist=shortlist)]


def through_generate(model: EncoderDecoder) -> Decode:
    from transformers import GenerationConfig

    theirs = marian(model).eval()
    assert model.head.bias_V is not None
    theirs.final_logits_bias[0] = model.head.bias_V.detach()

    def decode(sources: Ids, beam: int, longest: int) -> Ids:
        most = max(len(source) for source in sources)
        ids_BS = torch.tensor([source + [PAD] * (most - len(source)) for source in sources])
        settings = GenerationConfig(
            num_beams=beam,
            max_new_tokens=longest,
            length_penalty=0.0,
            early_stopping=False if beam == 1 else "never",
            do_sample=False,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )
        with torch.inference_mode():
            out = theirs.generate(ids_BS, attention_mask=(ids_BS != PAD).long(), generation_config=settings)
        rows = [row[1:] for row in out.tolist()]
        return [row[: row.index(EOS)] if EOS in row else [token for token in row if token != PAD] for row in rows]

    return decode


def through_ctranslate2(model: EncoderDecoder, precision: str, threads: int) -> Decode:
    import ctranslate2

    from allyouneed.interop.ctranslate2.spec import build_spec

    spec: Any = build_spec(model)
    specials = {BOS: "<s>", EOS: "</s>", 3: "<unk>"}
    names = [specials.get(number, str(number)) for number in range(model.sizes.target)]
    number_of: dict[str, int] = {name: number for number, name in enumerate(names)}
    spec.register_source_vocabulary(names[: model.sizes.source])
    spec.register_target_vocabulary(names)
    spec.validate()
    spec.optimize(precision)
    folder = tempfile.TemporaryDirectory()
    spec.save(folder.name)
    options = {"compute_type": precision, "inter_threads": 1, "intra_threads": threads}
    translator = ctranslate2.Translator(folder.name, **options)

    def decode(sources: Ids, beam: int, longest: int) -> Ids:
        words = [[names[token] for token in source] for source in sources]
        limits = {"max_decoding_length": longest, "min_decoding_length": 0, "max_input_length": 0}
        found = translator.translate_batch(words, beam_size=beam, length_penalty=0, **limits)
        return [[number_of[word] for word in one.hypotheses[0]] for one in found]

    return decode


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
