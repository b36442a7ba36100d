"""Check that an export computes what our model computes, on random ids and on texts of the task.

- Log-probabilities of given targets must agree to the tolerance below.
- Greedy search must give the same output. Where outputs first differ, the two tokens must tie to within the tolerance.

A quantized file is read back in float32 and compared with our model with equally rounded weights (`rounded`). The
effect of the rounding itself is measured separately and reported.

The tolerance grows with the model: both engines compute in float32 and add in different orders, and every layer adds
its rounding errors. How much that is, our own engine shows: the distance between its float32 and its float64. The other
engine is about as far from float64 (measured: 0.9 to 2 times), so `TIMES` that distance, and at least `CLOSE`, is
allowed. A wrong weight, order of weights or setting differs by far more.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from allyouneed.decode import SearchConfig, score, search
from allyouneed.errors import FolderError
from allyouneed.interop.ctranslate2.files import SUPPRESSED, Quantization, names_of, rounded
from allyouneed.models import Model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.shortlist.table import Shortlist
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS, EOS

CLOSE = 1e-3  # nats; float32 of a few layers differs by 1e-6 to 1e-5
TIMES = 10  # the rounding errors of our own engine
MOST = 0.05  # beyond this, or if ours are not numbers, nothing could be told from the comparison
LONGEST = 40  # maximum tokens to generate
Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Prompt:
    """The input of a model (a source or a prompt), and a target to score."""

    given: list[int]
    target: list[int]


class CTranslate2Model:
    """A folder opened with CTranslate2, using our model's ids."""

    def __init__(self, model: Model, codec: Codec, folder: Path, compute: str) -> None:
        import ctranslate2

        assert isinstance(model, EncoderDecoder | Decoder)
        assert codec.target is not None
        self.target = names_of(codec.target, model.sizes.target)
        self.source = names_of(codec.source, model.sizes.source) if codec.source is not None else self.target
        self.paired = isinstance(model, EncoderDecoder)
        opener = ctranslate2.Translator if self.paired else ctranslate2.Generator
        self._engine: Any = opener(str(folder), compute_type=compute, inter_threads=1, intra_threads=1)
        self._number = {name: number for number, name in enumerate(self.target)}
        self._model = model

    def logprobs(self, prompts: Sequence[Prompt]) -> list[list[float]]:
        """Return the log-probability of each target token and of EOS."""
        if self.paired:
            sources, targets = self._words([one.given for one in prompts], self.source), self._said(prompts)
            return [one.log_probs for one in self._engine.score_batch(sources, targets, max_input_length=0)]
        texts = self._words([[*one.given, *one.target, EOS] for one in prompts], self.target)
        found = self._engine.score_batch(texts, max_input_length=0)
        return [row.log_probs[len(one.given) - 1 :] for one, row in zip(prompts, found, strict=True)]

    def greedy(self, given: Rows, listed: bool = False) -> list[list[int]]:
        """Return the output of greedy search, without EOS. `listed`: use vmap.txt, with one input per batch."""
        usual: dict[str, Any] = {"beam_size": 1, "suppress_sequences": SUPPRESSED}
        usual |= {"use_vmap": True, "max_batch_size": 1} if listed else {}
        longest = output_limit(self._model, given)
        if self.paired:
            words = self._words(given, self.source)
            limits = {"max_decoding_length": longest, "min_decoding_length": 0, "max_input_length": 0}
            found = [one.hypotheses[0] for one in self._engine.translate_batch(words, **limits, **usual)]
        else:
            limits = {"max_length": longest, "min_length": 0, "include_prompt_in_result": False}
            words = self._words(given, self.target)
            found = [one.sequences[0] for one in self._engine.generate_batch(words, **limits, **usual)]
        return [[self._number[word] for word in one] for one in found]

    def _said(self, prompts: Sequence[Prompt]) -> list[list[str]]:
        return self._words([one.target for one in prompts], self.target)

    @staticmethod
    def _words(rows: Rows, names: Sequence[str]) -> list[list[str]]:
        return [[names[number] for number in row] for row in rows]


def check_folder(
    folder: Path,
    model: Model,
    codec: Codec,
    quantization: Quantization,
    prompts: Sequence[Prompt],
    next_stage: Callable[[str], None] = lambda words: None,
) -> list[str]:
    """Raise FolderError if the folder disagrees; else return notes on the agreement."""
    next_stage(f"log-probabilities of {len(prompts)} sequences in both engines")
    expected = rounded(model, quantization)
    exported = CTranslate2Model(model, codec, folder, "float32")
    given = [one.given for one in prompts]
    furthest, close = _furthest(logprobs(expected, prompts), exported.logprobs(prompts)), tolerance(expected, prompts)
    if furthest > close:
        raise FolderError(
            f"ctranslate2: log-probabilities differ from ours by {furthest:.2g}, more than {close:.2g}; "
            "nothing was written"
        )
    next_stage(f"greedy search for {len(prompts)} sequences in both engines")
    said, theirs = greedy(expected, given), exported.greedy(given)
    for one, two, source in zip(said, theirs, given, strict=True):
        if one != two and not _tie(expected, source, one, two, close):
            raise FolderError("ctranslate2: greedy search differs from ours; nothing was written")
    notes = [f"checked on {len(prompts)} sequences: log-probabilities within {furthest:.1e}, greedy search the same"]
    if quantization == "float32":
        return notes
    next_stage(f"the effect of {quantization}")
    return [*notes, _moved(model, exported, folder, codec, prompts, quantization)]


def check_shortlist(
    folder: Path,
    model: Model,
    codec: Codec,
    quantization: Quantization,
    prompts: Sequence[Prompt],
    shortlist: Shortlist,
) -> str:
    """Raise FolderError if vmap.txt differs from our shortlist in effect; else return a note on the comparison."""
    expected, given = rounded(model, quantization), [one.given for one in prompts]
    close = tolerance(expected, prompts)
    said = greedy(expected, given, shortlist)
    theirs = CTranslate2Model(model, codec, folder, "float32").greedy(given, listed=True)
    for one, two, source in zip(said, theirs, given, strict=True):
        if one != two and not _tie(expected, source, one, two, close):
            raise FolderError("ctranslate2: greedy search with vmap.txt differs from ours; nothing was written")
    return (
        f"vmap.txt is the shortlist: with use_vmap=True greedy search is the same for {len(prompts)} single sequences"
    )


def _moved(
    model: Model,
    exported: CTranslate2Model,
    folder: Path,
    codec: Codec,
    prompts: Sequence[Prompt],
    quantization: Quantization,
) -> str:
    """Return a note on the effect of rounding, in the type that CTranslate2 will use."""
    used = CTranslate2Model(model, codec, folder, quantization if computes(quantization) else "auto")
    ours, theirs = logprobs(model, prompts), used.logprobs(prompts)
    apart = [abs(a - b) for one, two in zip(ours, theirs, strict=True) for a, b in zip(one, two, strict=True)]
    given = [one.given for one in prompts]
    same = sum(one == two for one, two in zip(greedy(model, given), used.greedy(given), strict=True))
    average = sum(apart) / len(apart)
    return (
        f"effect of {quantization}: log-probabilities of tokens change by {average:.2g} on average, {max(apart):.2g} "
        f"at most; greedy search is the same for {same} of {len(prompts)}"
    )


def computes(quantization: Quantization) -> bool:
    """Return True if CTranslate2 supports this type on this CPU; otherwise it converts the weights."""
    import ctranslate2

    return quantization in ctranslate2.get_supported_compute_types("cpu")


def tolerance(model: Model, prompts: Sequence[Prompt]) -> float:
    """Return by how much log-probabilities of another engine in float32 may differ."""
    errors = _furthest(logprobs(model, prompts), logprobs(copy.deepcopy(model).double(), prompts))
    return min(max(CLOSE, TIMES * errors), MOST)


def logprobs(model: Model, prompts: Sequence[Prompt]) -> list[list[float]]:
    """Return the log-probability of each target token and of EOS, by our engine."""
    if isinstance(model, EncoderDecoder):
        return [one.token_logprobs for one in score(model, [(one.given, one.target) for one in prompts])]
    return [_continuation(model, one) for one in prompts]


def _continuation(model: Model, prompt: Prompt) -> list[float]:
    text_1T = torch.tensor([[*prompt.given, *prompt.target, EOS]])
    with torch.inference_mode():
        logits_1TV, _ = model.step(text_1T[:, :-1], model.start())
        logprob_TV = logits_1TV[0].log_softmax(dim=-1)
        found: list[float] = logprob_TV.gather(1, text_1T[0, 1:, None])[len(prompt.given) - 1 :, 0].tolist()
    return found


def greedy(model: Model, given: Rows, shortlist: Shortlist | None = None) -> list[list[int]]:
    """Return the output of our greedy search."""
    longest = output_limit(model, given)
    if isinstance(model, EncoderDecoder):
        config = SearchConfig(beam=1, max_length=longest)
        return [found[0].ids for found in search(model, given, config, shortlist=shortlist)]
    return [_continued(model, row, longest) for row in given]


def output_limit(model: Model, given: Rows) -> int:
    """Return the maximum output length for which the model has learned positions, EOS included."""
    positions = model.longest
    if positions is None:
        return LONGEST
    taken = 1 if isinstance(model, EncoderDecoder) else max(map(len, given), default=1)
    return max(1, min(LONGEST, positions - taken - 1))


def _continued(model: Model, prompt: Sequence[int], longest: int) -> list[int]:
    """Return the greedy continuation of a prompt."""
    said: list[int] = []
    with torch.inference_mode():
        logits_BTV, state = model.step(torch.tensor([list(prompt)]), model.start())
        while len(said) < longest:
            token = int(logits_BTV[0, -1, BOS + 1 :].argmax()) + BOS + 1
            if token == EOS:
                break
            said.append(token)
            logits_BTV, state = model.step(torch.tensor([[token]]), state)
    return said


def _tie(model: Model, given: list[int], one: list[int], two: list[int], close: float) -> bool:
    """Return True if two outputs first differ at tokens of equal probability."""
    place = next(i for i, (a, b) in enumerate(zip([*one, EOS], [*two, EOS], strict=False)) if a != b)
    both = [Prompt(given, [*answer, EOS][: place + 1]) for answer in (one, two)]
    first, second = (row[place] for row in logprobs(model, both))
    return abs(first - second) <= close


def _furthest(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    gaps = [abs(a - b) for one, two in zip(ours, theirs, strict=True) for a, b in zip(one, two, strict=True)]
    return max((gap if gap == gap else float("inf") for gap in gaps), default=0.0)
