"""Collation: texts or ids of different lengths become one padded batch.

text and text       source = text EOS;   input = BOS target;   output = target EOS
text and class      source = BOS text;   class = the number of its name
text and classes    source = BOS text;   class of each position = the number of its name, NO_CLASS at BOS
"""

from collections.abc import Sequence

import numpy as np
import torch

from allyouneed.errors import DataError
from allyouneed.tasks.base import NO_CLASS, Batch
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair
from allyouneed.text.ragged import Array, padded
from allyouneed.text.specials import BOS, EOS, PAD


def as_arrays(rows: Sequence[Sequence[int]]) -> list[Array]:
    """Return lists of ids as arrays."""
    return [np.asarray(row, dtype=np.int64) for row in rows]


def source_mask(source_BS: torch.Tensor) -> torch.Tensor | None:
    """Return the padding mask of sources; None if there is no padding."""
    mask_BS = source_BS != PAD
    return None if bool(mask_BS.all()) else mask_BS


def pair_batch(
    sources: Sequence[Array],
    targets: Sequence[Array],
    framing: tuple[Sequence[int], Sequence[int]] = ((), (EOS,)),
    prefix: Sequence[int] = (),
) -> Batch:
    """Return pairs of ids (without special ids) as a batch.

    `framing`: the ids before and after each source. `prefix`: the ids that each target begins with, after BOS.
    """
    source_BS = torch.from_numpy(padded(sources, *framing))
    return Batch(
        source_BS=source_BS,
        source_mask_BS=source_mask(source_BS),
        input_BT=torch.from_numpy(padded(targets, before=(BOS, *prefix))),
        output_BT=torch.from_numpy(padded(targets, before=prefix, after=(EOS,))),
    )


def class_batch(source: Array, classes: Sequence[int] | Array) -> Batch:
    """Return padded sources and the class of each as a batch."""
    source_BS = torch.from_numpy(source)
    return Batch(
        source_BS=source_BS,
        source_mask_BS=source_mask(source_BS),
        class_B=torch.tensor([int(number) for number in classes]),
    )


def text_pair_batch(codec: Codec, items: Sequence[Pair]) -> Batch:
    """Return pairs of texts as a batch."""
    source, target = codec.both()
    sources = source.encode_batch([text for text, _ in items])
    targets = target.encode_batch([text for _, text in items])
    return pair_batch(as_arrays(sources), as_arrays(targets), codec.framing, codec.target_start)


def text_class_batch(codec: Codec, items: Sequence[Pair]) -> Batch:
    """Return texts and the name of the class of each as a batch."""
    assert codec.classes is not None
    rows = as_arrays(codec.encode_sources([text for text, _ in items]))
    return class_batch(padded(rows), [codec.classes.index(name) for _, name in items])


def tag_batch(codec: Codec, items: Sequence[Pair]) -> Batch:
    """Return texts and the names of their positions' classes, separated by blanks, as a batch."""
    assert codec.classes is not None
    numbers = {name: number for number, name in enumerate(codec.classes)}
    rows, tags = codec.encode_sources([source for source, _ in items]), []
    for (source, target), row in zip(items, rows, strict=True):
        names = target.split(" ")
        unknown = [name for name in names if name not in numbers]
        if unknown:
            raise DataError(f"{source!r}: {unknown[0]!r} is not a class of this model; known: {', '.join(numbers)}")
        inside = codec.text_slice(len(row))
        tokens = inside.stop - inside.start
        if len(names) != tokens:
            raise DataError(f"{source!r}: {len(names)} classes for {tokens} tokens; should be one for each token")
        tags.append([NO_CLASS] * inside.start + [numbers[name] for name in names])
    source_BS = torch.from_numpy(padded(as_arrays(rows)))
    class_BS = torch.full_like(source_BS, NO_CLASS)
    for number, tag in enumerate(tags):
        class_BS[number, : len(tag)] = torch.tensor(tag)
    return Batch(source_BS=source_BS, source_mask_BS=source_mask(source_BS), class_BS=class_BS)
