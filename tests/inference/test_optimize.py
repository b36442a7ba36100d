"""Laid out for prediction, a model says the same."""

import torch

from allyouneed.decode import SearchConfig, search
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes


def test_the_numbers_and_the_answers_stay() -> None:
    config = EncoderDecoderConfig(width=12, hidden=20, mixer=SoftmaxConfig(heads=3), encoder_layers=1, decoder_layers=2)
    model = config.build(Sizes(11, 11, shared=True)).double().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sources = [[5, 6, 7, 2], [8, 2]]
    said = search(model, sources, SearchConfig(beam=3, max_length=7))
    optimize_for_inference(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = search(model, sources, SearchConfig(beam=3, max_length=7))
    assert [found[0].ids for found in again] == [found[0].ids for found in said]
    assert model.head.weight_VD.stride() == (1, 11)
    assert model.target.weight_VD.is_contiguous()
