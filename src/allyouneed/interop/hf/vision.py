"""How models of images read an image: preprocessor_config.json, in both directions.

An image is resized to a square; each byte v becomes (v / 255 - mean) / std. The first is the codec's (`Pictures`), the
second the model's (`mean` and `std`). Anything else, such as cutting out the centre, is refused by name.
"""

from typing import Any, get_args

from allyouneed.config import Tree, parse
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.files import CONFIG, ForeignFolder
from allyouneed.interop.hf.rules import Rows
from allyouneed.interop.hf.vocabulary import Vocabulary
from allyouneed.models.vit import ViTConfig
from allyouneed.text.codec import Codec
from allyouneed.text.pictures import PictureConfig, Pictures, Resample
from allyouneed.text.tokenizer import Tokenizer

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "ViTImageProcessor"
FILTERS: tuple[Resample, ...] = get_args(Resample)  # by Pillow's numbers
# Names of the same processor, and fields that change nothing.
NAMES = (PROCESSOR, "ViTImageProcessorFast", "ViTImageProcessorPil", "ViTFeatureExtractor")
INERT = ("do_convert_rgb", "processor_class", "data_format", "input_data_format", "return_tensors", "device")


def read_preprocessor(foreign: ForeignFolder, config: ViTConfig) -> tuple[ViTConfig, PictureConfig, list[str]]:
    """Return the settings with the scale of pixels, how images are read, and notes for the user."""
    given = foreign.has(PREPROCESSOR)
    fields = Fields(foreign.read_json(PREPROCESSOR) if given else {}, foreign.path / PREPROCESSOR)
    for name in ("image_processor_type", "feature_extractor_type"):
        fields.only(name, *NAMES)
    for name in ("do_resize", "do_rescale", "do_normalize"):
        fields.only(name, True)
    for name in ("do_center_crop", "do_pad", "do_reduce_labels"):
        fields.only(name, False)
    if abs(fields.real("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise FolderError(f"{fields.where}: rescale_factor: only 1/255 is supported")
    _require_size(fields, config.size)
    number = fields.number("resample", FILTERS.index("bilinear"), least=0, most=len(FILTERS) - 1)
    scales = {ours: _numbers(fields, f"image_{ours}", config.channels) for ours in ("mean", "std")}
    if config.channels not in (1, 3):
        raise FolderError(f"{foreign.path / CONFIG}: num_channels: {config.channels}; only 1 or 3 is supported")
    fields.ignore([*INERT, "crop_size"])
    fields.finish()
    picture = parse(PictureConfig, {"size": config.size, "channels": config.channels, "resample": FILTERS[number]})
    notes = [] if given else [f"no {PREPROCESSOR}: images are scaled as {PROCESSOR} does by default"]
    return config.model_copy(update=scales), picture, notes


def _require_size(fields: Fields, size: int) -> None:
    value = fields.get("size", size)
    if isinstance(value, dict) and value.keys() == {"height", "width"} and value["height"] == value["width"]:
        value = value["height"]
    if value != size:
        raise FolderError(
            f"{fields.where}: size: {value!r}, but image_size of config.json is {size}; they should be the same square"
        )


def _numbers(fields: Fields, name: str, channels: int) -> tuple[float, ...]:
    value = fields.get(name, 0.5)
    listed = value if isinstance(value, list) else [value]
    if len(listed) not in (1, channels) or any(type(one) not in (int, float) for one in listed):
        raise FolderError(f"{fields.where}: {name}: {value!r}; should be a number for each of {channels} channels")
    if name == "image_std" and min(listed) <= 0:
        raise FolderError(f"{fields.where}: {name}: {value!r}; should be above 0")
    return tuple(map(float, listed))


def picture_vocabulary(picture: PictureConfig, classes: int) -> Vocabulary:
    """Return the ids of bytes, which have no counterpart in transformers."""
    tokenizer = Tokenizer(Pictures(picture))
    return Vocabulary(tokenizer, Rows((None,) * tokenizer.size, classes=classes), {}, tokenizer)


def picture_codec(vocabulary: Vocabulary, classes: tuple[str, ...]) -> Codec:
    """Return the codec of a model of images: nothing is added before or after the bytes."""
    return Codec(source=vocabulary.source, classes=classes, frame=((), ()))


def write_preprocessor(codec: Codec, config: ViTConfig) -> dict[str, Tree]:
    """Return the file for transformers."""
    assert codec.source is not None
    picture = codec.source.picture
    if picture is None:
        raise ConfigError("the codec does not read images")
    scales: dict[str, Any] = {"image_mean": config.mean, "image_std": config.std}
    scales = {name: [*(value if len(value) > 1 else value * config.channels)] for name, value in scales.items()}
    tree = {
        "image_processor_type": PROCESSOR,
        "do_resize": True,
        "size": {"height": picture.size, "width": picture.size},
        "resample": FILTERS.index(picture.resample),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **scales,
    }
    return {PREPROCESSOR: tree}
