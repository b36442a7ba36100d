"""Documents in files: the format by the ending of the name, and the limits of what is read."""

from collections.abc import Callable
from pathlib import Path

from allyouneed.documents.docx_document import DocxDocument
from allyouneed.documents.html_document import HtmlDocument
from allyouneed.documents.markdown_document import MarkdownDocument
from allyouneed.documents.pieces import Document
from allyouneed.documents.po_document import PoDocument
from allyouneed.documents.srt_document import SrtDocument
from allyouneed.documents.text_document import TextDocument
from allyouneed.documents.xliff_document import XliffDocument
from allyouneed.errors import ConfigError, DataError, unknown_name
from allyouneed.text.lines import decode_text, without_mark

LARGEST = 64 << 20  # bytes of a document
Reader = Callable[[bytes, str], Document]


def _read_text(raw: bytes, where: str) -> str:
    """Return the text of a document in UTF-8, without a byte order mark."""
    path = Path(where)
    return decode_text(without_mark(raw, path), path, 1)


READERS: dict[str, Reader] = {
    "text": lambda raw, where: TextDocument(_read_text(raw, where)),
    "html": lambda raw, where: _html(raw, where),
    "markdown": lambda raw, where: MarkdownDocument(_read_text(raw, where)),
    "po": lambda raw, where: PoDocument(_read_text(raw, where), where),
    "srt": lambda raw, where: SrtDocument(_read_text(raw, where), where),
    "xliff": XliffDocument,
    "docx": DocxDocument,
}
ENDINGS = {
    ".txt": "text",
    ".text": "text",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".po": "po",
    ".pot": "po",
    ".srt": "srt",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".docx": "docx",
}


def format_of(path: Path) -> str:
    """Return the format of a file by the ending of its name."""
    found = ENDINGS.get(path.suffix.lower())
    if found is None:
        raise ConfigError(f"{path}: no format is known for this ending; state one: --format {' | '.join(READERS)}")
    return found


def read_document(raw: bytes, kind: str, where: str) -> Document:
    """Return a document of a format. Raise DataError with the place if it is not of this format."""
    if kind not in READERS:
        raise ConfigError(f"format: {unknown_name(kind, READERS)}")
    if len(raw) > LARGEST:
        raise DataError(f"{where}: more than {LARGEST >> 20} MiB; split the document")
    return READERS[kind](raw, where)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, at most one more than `read_document` accepts."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _html(raw: bytes, where: str) -> Document:
    try:
        return HtmlDocument(_read_text(raw, where))
    except DataError as error:
        text = str(error)
        raise DataError(text if text.startswith(where) else f"{where}: {text}") from None
