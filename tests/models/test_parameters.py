"""Parameter counts: the formula, the paper's table 3, and what tying saves."""

from typing import Any

import pytest
import torch

from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import ModelConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes

BIG: dict[str, Any] = {"width": 1024, "hidden": 4096, "mixer": SoftmaxConfig(heads=16)}


def count(config: ModelConfig, sizes: Sizes) -> int:
    with torch.device("meta"):  # shapes without numbers
        return config.build(sizes).parameter_count()


def transformer(vocabulary: int, **settings: Any) -> int:
    return count(EncoderDecoderConfig(**settings), Sizes(vocabulary, vocabulary, shared=True))


def by_hand(vocabulary: int, width: int, hidden: int, layers: int) -> int:
    """Count the paper's parameters: biases in all projections, as in its code, and one matrix for three embeddings."""
    attention = 4 * (width * width + width)
    feedforward = width * hidden + hidden + hidden * width + width
    norm = 2 * width
    encoder = attention + feedforward + 2 * norm
    decoder = 2 * attention + feedforward + 3 * norm
    return vocabulary * width + layers * (encoder + decoder)


def test_transformer_base_and_big() -> None:
    assert transformer(37_000) == by_hand(37_000, 512, 2048, 6) == 63_082_496
    assert transformer(37_000, **BIG) == by_hand(37_000, 1024, 4096, 6) == 214_245_376


def layers(number: int) -> dict[str, Any]:
    return {"encoder_layers": number, "decoder_layers": number}


# The paper speaks of "about 37,000" shared tokens, but its own numbers disagree with that: rows (A) to (C) of table 3
# all come out right, rounded to millions, for vocabularies from 40,932 to 41,160 and no others (d_ff = 1024 sets the
# lower end, N = 4 the upper), while the big model's 213 million need 35,296 to 36,272. No single vocabulary fits all of
# them. With 37,000 tokens the base model has 63.1 and the big one 214.2 million.
TABLE_3: list[tuple[str, int, dict[str, Any]]] = [
    ("base", 65, {}),
    ("(A) h=1", 65, {"mixer": SoftmaxConfig(heads=1)}),
    ("(A) h=4", 65, {"mixer": SoftmaxConfig(heads=4)}),
    ("(A) h=16", 65, {"mixer": SoftmaxConfig(heads=16)}),
    ("(A) h=32", 65, {"mixer": SoftmaxConfig(heads=32)}),
    ("(B) d_k=16", 58, {"mixer": SoftmaxConfig(heads=8, key_width=16)}),
    ("(B) d_k=32", 60, {"mixer": SoftmaxConfig(heads=8, key_width=32)}),
    ("(C) N=2", 36, layers(2)),
    ("(C) N=4", 50, layers(4)),
    ("(C) N=8", 80, layers(8)),
    ("(C) d_model=256", 28, {"width": 256, "mixer": SoftmaxConfig(heads=8, key_width=32, value_width=32)}),
    ("(C) d_model=1024", 168, {"width": 1024, "mixer": SoftmaxConfig(heads=8, key_width=128, value_width=128)}),
    ("(C) d_ff=1024", 53, {"hidden": 1024}),
    ("(C) d_ff=4096", 90, {"hidden": 4096}),
]


@pytest.mark.parametrize(("millions", "settings"), [row[1:] for row in TABLE_3], ids=[row[0] for row in TABLE_3])
@pytest.mark.parametrize("vocabulary", [40_932, 41_160])
def test_table_3(millions: int, settings: dict[str, Any], vocabulary: int) -> None:
    assert round(transformer(vocabulary, **settings) / 1e6) == millions


def test_no_other_vocabulary_fits() -> None:
    assert round(transformer(40_931, hidden=1024) / 1e6) == 52
    assert round(transformer(41_161, **layers(4)) / 1e6) == 51


@pytest.mark.parametrize(("vocabulary", "fits"), [(35_296, True), (36_272, True), (35_295, False), (36_273, False)])
def test_table_3_big(vocabulary: int, fits: bool) -> None:
    assert (round(transformer(vocabulary, **BIG) / 1e6) == 213) == fits


SMALL: dict[str, Any] = {"width": 12, "mixer": SoftmaxConfig(heads=3), "hidden": 20}


@pytest.mark.parametrize(
    ("tied", "shared", "tables"),
    [(True, True, 17), (True, False, 11 + 17), (False, True, 17 + 17 + 17), (False, False, 11 + 17 + 17)],
)
def test_tables_of_an_encoder_decoder(tied: bool, shared: bool, tables: int) -> None:
    """Tied and shared: one matrix; tied: the target's serves twice; untied: three."""
    config = EncoderDecoderConfig(**SMALL, tied=tied, **layers(0))
    assert count(config, Sizes(17 if shared else 11, 17, shared)) == 12 * tables


@pytest.mark.parametrize(("tied", "tables"), [(True, 17), (False, 34)])
def test_tables_of_a_decoder(tied: bool, tables: int) -> None:
    assert count(DecoderConfig(**SMALL, tied=tied, layers=0), Sizes(0, 17)) == 12 * tables


def test_tables_of_an_encoder() -> None:
    assert count(EncoderConfig(**SMALL, layers=0), Sizes(11, 3)) == 12 * (11 + 3) + 3


def test_pre_norm_stacks_end_in_one_more_norm() -> None:
    post, pre = (count(DecoderConfig(**SMALL, norm=norm), Sizes(0, 5)) for norm in ("post", "pre"))
    assert pre - post == 2 * 12
