"""Words of a request that are not in a model's vocabulary: the model answers all the same, so responses state them."""

from collections.abc import Sequence

from allyouneed.serve.backend import INLINE_CHARACTERS, Backend
from allyouneed.serve.models import Served
from allyouneed.text.checks import unknown_words


async def unknown_words_of(backend: Backend, sources: Sequence[tuple[Served, str]]) -> list[list[str]]:
    """Return the unknown words of each source text, for its model."""

    def work() -> list[list[str]]:
        found = []
        for served, text in sources:
            assert served.bundle.codec.source is not None
            found.append(unknown_words(served.bundle.codec.source, text))
        return found

    short = sum(len(text) for _, text in sources) <= INLINE_CHARACTERS
    return work() if short else await backend.in_thread(work)
