"""A shortlist: the target words that a source allows. Decoding then scores a few hundred words instead of all.

    allowed(x_1 .. x_S) = always + words(x_1) + .. + words(x_S)

    always    special ids and the most frequent target words
    words(x)  the most probable translations of a source word by lexicon.py; with a shared vocabulary also the word
              itself, because names and numbers are copied

In a model folder it is `shortlist.safetensors`: `always` (A), `words` of all source words, concatenated, and `ends`
(one for each source word), where the words of each source word end.

Paper: Jean et al. 2015, arXiv:1412.2007 (candidate lists); L'Hostis et al. 2016, arXiv:1610.00072 (how to choose them).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from allyouneed.errors import FolderError
from allyouneed.shortlist.lexicon import Lexicon
from allyouneed.text.ragged import Array
from allyouneed.text.specials import UNK

SPECIALS = UNK + 1  # includes PAD and BOS, which are never generated but have probabilities
BEST, ALWAYS = 50, 100


@dataclass(frozen=True)
class Shortlist:
    """The target words that each source word allows, as sorted ids."""

    always: Tensor
    words: Tensor
    ends: Tensor

    @cached_property
    def last(self) -> int:
        """The largest id of a target word."""
        return max(int(self.always[-1]), int(self.words.max()) if len(self.words) else 0)

    @cached_property
    def _arrays(self) -> tuple[Array, Array, Array]:
        """The tensors as numpy arrays."""
        return self.always.numpy(), self.words.numpy(), self.ends.numpy()

    def lists(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return the sorted words that each source allows (N, L), zero-padded on the right, and their counts (N)."""
        (always, words, ends), size = self._arrays, self.last + 1
        given = np.array([word for source in sources for word in source], dtype=np.int64)
        row = np.repeat(np.arange(len(sources)), [len(source) for source in sources])
        last = ends[given]
        count = last - np.where(given > 0, ends[given - 1], 0)
        # The indices of the words of all source words, concatenated.
        place = np.arange(count.sum()) + np.repeat(last - count.cumsum(), count)
        allowed = np.zeros((len(sources), size), dtype=bool)  # sorting the words would take longer
        allowed[:, always] = True
        allowed.reshape(-1)[np.repeat(row * size, count) + words[place]] = True
        found = np.flatnonzero(allowed)
        if len(sources) == 1:
            return torch.from_numpy(found)[None], torch.tensor([len(found)])
        counts = np.bincount(found // size, minlength=len(sources))
        word = np.zeros((len(sources), counts.max(initial=0)), dtype=np.int64)
        word[np.arange(word.shape[1]) < counts[:, None]] = found % size
        return torch.from_numpy(word), torch.from_numpy(counts)

    def of(self, source_word: int) -> list[int]:
        """Return the words that one source word allows."""
        begin = int(self.ends[source_word - 1]) if source_word else 0
        found: list[int] = self.words[begin : int(self.ends[source_word])].tolist()
        return found

    @property
    def signature(self) -> str:
        """A short name for the signatures of scores: the longest list of a source word, the number of words that are
        always allowed, and the start of the sha256 of the stored file."""
        longest = int(self.ends.diff(prepend=self.ends.new_zeros(1)).max()) if len(self.ends) else 0
        digest = hashlib.sha256(save(self.tensors())).hexdigest()
        return f"shortlist:{longest}+{len(self.always) - SPECIALS}:{digest[:8]}"

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the stored file."""
        return {
            "always": self.always.to(torch.int32),
            "words": self.words.to(torch.int32),
            "ends": self.ends.to(torch.int64),
        }


def make_shortlist(
    lexicon: Lexicon, frequency: np.ndarray, sources: int, *, best: int = BEST, always: int = ALWAYS, shared: bool
) -> Shortlist:
    """Return a shortlist: `best` translations of each source word, and the `always` most frequent target words.

    `frequency`: the count of each target word. `shared`: source and target have one vocabulary.
    """
    named = (lexicon.source >= SPECIALS) & (lexicon.target >= SPECIALS)  # an unknown word has no particular translation
    likely = Lexicon(lexicon.source[named], lexicon.target[named], lexicon.probability[named]).best(best)
    source, target = likely.source.astype(np.int64), likely.target.astype(np.int64)
    if shared:
        itself = np.arange(SPECIALS, sources)
        source, target = np.concatenate([source, itself]), np.concatenate([target, itself])
    pairs = np.unique(source * len(frequency) + target)
    source, target = pairs // len(frequency), pairs % len(frequency)
    real = np.argsort(-frequency[SPECIALS:], kind="stable")[:always] + SPECIALS
    real = real[frequency[real] > 0]
    return Shortlist(
        always=torch.from_numpy(np.sort(np.concatenate([np.arange(SPECIALS), real]))),
        words=torch.from_numpy(target),
        ends=torch.from_numpy(np.searchsorted(source, np.arange(sources), side="right")),
    )


def read_shortlist(tensors: dict[str, Tensor], sources: int, targets: int, where: Path) -> Shortlist:
    """Return a stored shortlist. Raise FolderError if it does not fit the numbers of source and target words."""
    types = {"always": torch.int32, "words": torch.int32, "ends": torch.int64}
    if tensors.keys() != types.keys():
        raise FolderError(f"{where}: holds {', '.join(sorted(tensors)) or 'nothing'}; should hold {', '.join(types)}")
    for name, dtype in types.items():
        if tensors[name].dim() != 1 or tensors[name].dtype != dtype:
            raise FolderError(f"{where}: {name} should be a vector of {str(dtype).removeprefix('torch.')}")
    always, words, ends = (tensors[name].long() for name in types)
    for name, ids in (("always", always), ("words", words)):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < targets:
            raise FolderError(f"{where}: {name} holds ids that are not among the {targets:,} target words")
    if always[:SPECIALS].tolist() != list(range(SPECIALS)) or bool((always.diff() <= 0).any()):
        raise FolderError(f"{where}: always should hold different ids in order, the {SPECIALS} special ones first")
    if len(ends) != sources:
        raise FolderError(f"{where}: for {len(ends):,} source words, but the model has {sources:,}; make it again")
    begins = torch.cat([ends.new_zeros(1), ends])
    # Compared, not subtracted: the difference of numbers from a file can overflow.
    if bool((begins[1:] < begins[:-1]).any()) or int(begins[-1]) != len(words):
        raise FolderError(f"{where}: ends should rise to the number of words, {len(words):,}")
    inside = torch.ones(len(words), dtype=torch.bool)
    inside[ends[ends < len(words)]] = False
    if bool((words.diff() <= 0)[inside[1:]].any()):
        raise FolderError(f"{where}: words of a source word should be different ids in order")
    return Shortlist(always, words, ends)
