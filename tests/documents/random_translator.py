"""Drives the translation of documents with a function instead of a model, and with hostile random outputs."""

import random
from collections.abc import Callable

from allyouneed.documents.pieces import Document
from allyouneed.documents.translation import Result, Texts, translate_document
from allyouneed.text.sentences import SentenceSplitter

HOSTILE = ["%s", "%d", "{0}", "{", "}", "%", "<b>", "</i>", "<", ">", "&", "&amp;", "\\", '"', "`", "*", "_", "[", "]"]
HOSTILE += [
    "(",
    ")",
    "#",
    "|",
    "~~",
    "-->",
    "]]>",
    "http://a.b/c",
    "x@y.org",
    "7",
    "42",
    "\n",
    "\x00",
    "\x0b",
    "\ud800",
]
HOSTILE += ["-", "1.", "eins", "zwei", "große", "Hunde", "漢字", "", "msgid", "\t", "$", "www.x", "\\n", "[^1]", "￾"]


def translated(
    document: Document, translate: Callable[[str], str], seed: int | None = None, most: int | None = 1
) -> tuple[bytes, Result]:
    """Return the translated document. With a seed, alignments are random; otherwise there are none."""
    weights = random.Random(seed)
    steps = translate_document(document, SentenceSplitter(most, ("en", "de")))
    request = next(steps)
    while True:
        try:
            if isinstance(request, Texts):
                request = steps.send([translate(text) for text in request.texts])
            else:
                request = steps.send(
                    [
                        None
                        if seed is None
                        else [[weights.random() for _ in pair.source_words] for _ in pair.target_words]
                        for pair in request.pairs
                    ]
                )
        except StopIteration as end:
            return document.write(end.value.segments), end.value


def random_translator(seed: int) -> Callable[[str], str]:
    """Return a translator that outputs anything."""
    chosen = random.Random(seed)
    return lambda text: chosen.choice(["", " "]).join(chosen.choices(HOSTILE, k=chosen.randrange(0, 12)))
