"""Prompts as ids. The source of a translator is split into sentences, as `/translate` does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allyouneed.serve.backend import INLINE_CHARACTERS, Backend
from allyouneed.serve.models import Served
from allyouneed.text.glossary import RequiredPhrase


@dataclass(frozen=True)
class EncodedPrompt:
    """The ids of the pieces of a prompt, and the texts that join what the pieces become. Most have one piece."""

    pieces: Sequence[list[int]]
    gaps: Sequence[str] = ()  # one less than pieces
    phrases: Sequence[tuple[RequiredPhrase, ...]] = ()  # that the target of each piece must contain; empty: none

    @property
    def tokens(self) -> int:
        """Number of tokens of all pieces."""
        return sum(map(len, self.pieces))


async def encode_sources(backend: Backend, served: Served, texts: Sequence[str], param: str) -> list[EncodedPrompt]:
    """Return the ids of source texts, in pieces if the model translates sentence by sentence."""
    split = served.splitter.split_lines
    inline = sum(map(len, texts)) <= INLINE_CHARACTERS
    splits = list(map(split, texts)) if inline else await backend.in_thread(lambda: list(map(split, texts)))
    ids = iter(await backend.encode_sources(served, [piece for split in splits for piece in split.pieces], param))
    found = [EncodedPrompt([next(ids) for _ in split.pieces], split.gaps) for split in splits]
    if served.terms is None:
        return found
    phrases_of = served.terms.glossary.phrases
    phrases = await backend.in_thread(lambda: [list(map(phrases_of, split.pieces)) for split in splits])
    return [replace(one, phrases=of_one) for one, of_one in zip(found, phrases, strict=True)]
