"""Vectors of texts: a plain mean is the oracle, and other texts of a batch change nothing."""

import pytest
import torch

from allyouneed.config import parse
from allyouneed.decode.embed import embed, longest_text
from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.models import MODELS, Model
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS
from allyouneed.text.tokenizer import of_symbols

WORDS = of_symbols("abcdefgh", "characters")
BLOCK = {"mixer": {"type": "softmax", "heads": 2}, "width": 16, "hidden": 32, "dropout": 0.0}
SETTINGS = {
    "encoder": {**BLOCK, "layers": 2},
    "encoder-decoder": {**BLOCK, "encoder_layers": 2, "decoder_layers": 1},
    "decoder": {**BLOCK, "layers": 2},
    "seq2seq": {"cell": "lstm", "width": 16, "attention": "bahdanau"},
    "bytenet": {"width": 12, "dilations": [1, 2], "encoder_sets": 1, "decoder_sets": 1},
}
TEXTS = ["abc", "h", "defgabc", "a" * 40]


def built(name: str, **more: object) -> tuple[Model, Codec]:
    torch.manual_seed(1)
    model = parse(MODELS[name], {"type": name, **SETTINGS[name], **more}).build(Sizes(WORDS.size, WORDS.size)).eval()
    codec = Codec(target=WORDS) if name == "decoder" else Codec(source=WORDS, target=WORDS)
    return model, codec


def ids_of(codec: Codec) -> list[list[int]]:
    return WORDS.encode_batch(TEXTS) if codec.source is None else codec.encode_sources(TEXTS)


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_vectors_are_plain_means(name: str, optimized: bool) -> None:
    model, codec = built(name)
    if optimized:
        optimize_for_inference(model)
    vectors = embed(model, codec, ids_of(codec), batch_tokens=90)
    for ids, vector_D in zip(ids_of(codec), vectors, strict=True):
        with torch.inference_mode():
            if name == "decoder":
                states_SD = model.hidden(torch.tensor([[BOS, *ids]]), model.start())[0][0, 1:]
            else:
                states_SD = model.encode(torch.tensor([ids])).x_BSD[0]
        mean = [sum(column) / len(column) for column in zip(*states_SD.tolist(), strict=True)]
        length = sum(value * value for value in mean) ** 0.5
        assert vector_D.tolist() == pytest.approx([value / length for value in mean], abs=1e-5)
        torch.testing.assert_close(embed(model, codec, [ids])[0], vector_D, atol=1e-5, rtol=1e-4)


def test_the_longest_text() -> None:
    learned = {"positions": {"type": "learned", "max_length": 20}}
    for name, most in (("encoder", 20), ("encoder-decoder", 20), ("decoder", 19)):
        model, codec = built(name, **learned)
        assert longest_text(model, codec) == most
        assert embed(model, codec, [[5] * most])[0].shape == (16,)
        with pytest.raises(Exception, match="positions"):
            embed(model, codec, [[5] * (most + 1)])
        assert longest_text(*built(name)) is None
    assert longest_text(*built("seq2seq")) is None


def test_a_model_without_an_encoder() -> None:
    settings = {"type": "memn2n", "width": 16}
    model = parse(MODELS["memn2n"], settings).build(Sizes(WORDS.size, WORDS.size))
    with pytest.raises(ConfigError, match="no source to encode"):
        embed(model, Codec(source=WORDS, classes=("x",)), [[5, 6]])
