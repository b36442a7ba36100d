"""Models from elsewhere, and ours elsewhere: explicit maps of names and settings; what is not understood is refused.

`EXPORTS` is what `allyouneed export --to` knows: each writes a folder and gives the lines that a person should read.
"""

from collections.abc import Callable
from pathlib import Path

from allyouneed.folder import Bundle


def _hugging_face(bundle: Bundle, out: Path) -> list[str]:
    from allyouneed.interop.hf.export import export_folder

    return export_folder(bundle, out)


Export = Callable[[Bundle, Path], list[str]]
EXPORTS: dict[str, Export] = {
    "hf": _hugging_face,
}
