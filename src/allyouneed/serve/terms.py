"""The glossary of a served model: a file of terms that its translations use (docs/terms.md)."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from allyouneed.decode.phrases import can_write
from allyouneed.errors import ConfigError, UserError
from allyouneed.folder import Bundle
from allyouneed.text.glossary import Glossary
from allyouneed.text.lines import resolve


@dataclass(frozen=True)
class ServedTerms:
    """The terms of a file, and what the file was when they were read."""

    file: str  # as the setup names it
    sha256: str
    glossary: Glossary

    def is_current(self) -> bool:
        """Return whether the file is unchanged."""
        try:
            return _sha256(resolve(self.file)) == self.sha256
        except (OSError, UserError):
            return False


def read_terms(file: str, bundle: Bundle, ctranslate2: bool) -> ServedTerms:
    """Return the glossary of a model. Raise ConfigError for a file that is not one, or a model that cannot use it."""
    where, target = f"glossary {file}", bundle.codec.target
    if bundle.codec.source is None or target is None or bundle.codec.classes is not None:
        raise ConfigError(f"{where}: is for models that translate, and {bundle.path} does not; remove it")
    if ctranslate2:
        raise ConfigError(f"{where}: --engine ctranslate2 cannot constrain translations; use --engine torch")
    try:
        terms = ServedTerms(file, _sha256(resolve(file)), Glossary.read(file))
    except UserError as error:
        raise ConfigError(f"glossary: {error}") from None
    except OSError as error:
        raise ConfigError(f"{where}: not readable: {error.strerror or error}") from None
    for text in terms.glossary.targets():
        if not can_write(target, text):
            raise ConfigError(f"{where}: {text[:60]!r} has characters or words that {bundle.path} cannot write")
    return terms


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
