"""Images as a part of `Tokenizer`: the text is the name of a file, the ids are the bytes of its pixels.

    ids = 4 + red, green and blue of the first pixel, of the second, ...        row by row, one id for each byte

An image is read in colour (3 channels) or in grey (1), and resized to `size` x `size` pixels. A text of one character
for each byte (byte v is the Braille pattern U+2800 + v) is an image, too: held-out images of a run are kept in this
form, which `decode` returns.

`Pictures` has those methods of the tokenizers library that `Tokenizer` calls. The file is JSON: the settings.
"""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from allyouneed.config import Config, parse
from allyouneed.errors import ConfigError, DataError, FolderError
from allyouneed.text.ragged import Array
from allyouneed.text.sentencepieces import Pieces
from allyouneed.text.specials import SPECIALS, UNK

TYPE = "Pictures"  # of `model` in the file
FIRST_VALUE = UNK + 1  # the id of byte 0
FIRST_CHARACTER = 0x2800  # Braille has 256 patterns, one for each byte
BYTES = 256
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MOST_PIXELS = 1 << 27  # of a file: a small file can hold a very large image
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]


class PictureConfig(Config):
    """How an image is read."""

    size: int = Field(default=28, ge=1, le=4096)  # pixels a side
    channels: Literal[1, 3] = 1  # values a pixel: grey, or red, green and blue
    resample: Resample = "bilinear"  # the filter that resizes, of Pillow

    @property
    def values(self) -> int:
        """Return the number of bytes of an image."""
        return self.size * self.size * self.channels


class Pictures:
    """A reader of images."""

    normalizer = TYPE  # the length of a name says nothing about the number of ids

    def __init__(self, config: PictureConfig) -> None:
        self.config = config

    def get_vocab(self, with_added_tokens: bool = False) -> dict[str, int]:
        """Return the id of each name."""
        return {name: number for number, name in enumerate([*SPECIALS, *map(character, range(BYTES))])}

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """Return no tokens."""
        return {}

    def id_to_token(self, number: int) -> str | None:
        """Return the name of an id."""
        return SPECIALS[number] if number < FIRST_VALUE else character(number - FIRST_VALUE)

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[Pieces]:
        """Return the ids of each image."""
        return [Pieces((self.read(text).astype(np.int64) + FIRST_VALUE).tolist(), []) for text in texts]

    def encode(self, text: str, add_special_tokens: bool = False) -> Pieces:
        """Return nothing: no pixel has a place in the name of a file."""
        return Pieces([], [])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return an image as text."""
        return image_text(np.array([number - FIRST_VALUE for number in ids], dtype=np.uint8))

    def to_str(self, pretty: bool = False) -> str:
        """Return the content of the file."""
        return json.dumps({"version": "1.0", "model": {"type": TYPE, **self.config.model_dump(mode="json")}})

    @staticmethod
    def from_tree(tree: dict[str, Any], where: object) -> "Pictures":
        """Return what `to_str` wrote. Raise FolderError if the tree is not that."""
        try:
            settings = {name: value for name, value in tree["model"].items() if name != "type"}
            return Pictures(parse(PictureConfig, settings))
        except ConfigError as error:
            raise FolderError(f"{where}: {error}") from None

    def read(self, text: str) -> Array:
        """Return the bytes of an image, given as the name of a file or as text. Raise DataError if it is not one."""
        if not text or not FIRST_CHARACTER <= ord(text[0]) < FIRST_CHARACTER + BYTES:
            return self.resized(_opened(Path(text.strip())))
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)
        if len(codes) != self.config.values or codes.min() < FIRST_CHARACTER or codes.max() >= FIRST_CHARACTER + BYTES:
            raise DataError(f"an image of {len(codes):,} bytes as text; should be {self.config.values:,} bytes")
        return (codes - FIRST_CHARACTER).astype(np.uint8)

    def resized(self, image: Any) -> Array:
        """Return the bytes of a Pillow image in the right size."""
        from PIL.Image import Resampling

        side, mode = self.config.size, "RGB" if self.config.channels == 3 else "L"
        image = image if image.mode == mode else image.convert(mode)
        if image.size != (side, side):
            image = image.resize((side, side), Resampling[self.config.resample.upper()])
        return np.asarray(image, dtype=np.uint8).reshape(-1)


def _opened(path: Path) -> Any:
    """Return a Pillow image that is read completely."""
    from PIL import Image, UnidentifiedImageError  # imported here: only models of images need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own limit on pixels, and notes on metadata
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise DataError(f"{path}: {image.width:,} x {image.height:,} pixels; at most {MOST_PIXELS:,}")
                image.load()
                return image
    except FileNotFoundError:
        raise DataError(
            f"{str(path)[:200]}: no such file; this model reads images, given by the names of files"
        ) from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image of a known format ({', '.join(FORMATS)})") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{str(path)[:200]}: cannot be read as an image: {error}") from None


def character(value: int) -> str:
    """Return the character of a byte."""
    return chr(FIRST_CHARACTER + value)


def image_text(image: Array) -> str:
    """Return an image as text, one character for each byte."""
    return (np.asarray(image, "<u2") + FIRST_CHARACTER).astype("<u2").tobytes().decode("utf-16-le")


def is_pictures(tree: object) -> bool:
    """Return whether the tree of a tokenizer.json is a reader of images."""
    model = tree.get("model") if isinstance(tree, dict) else None
    return isinstance(model, dict) and model.get("type") == TYPE
