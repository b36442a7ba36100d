"""A model of ours as a Hugging Face folder."""

from pathlib import Path

from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle


def export_folder(bundle: Bundle, out: Path) -> list[str]:
    """Writes the folder; gives what a person should know about it."""
    raise ConfigError(f"{bundle.path}: nothing in Hugging Face's transformers computes what it computes")
