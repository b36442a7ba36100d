"""Small random models for decoding tests, one of them not a Transformer, and slow reference searches."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allyouneed.decode import Hypothesis
from allyouneed.models import Model
from allyouneed.models.base import Head
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import PositionConfig
from allyouneed.sizes import Sizes
from allyouneed.text.specials import BOS, EOS, PAD

HEADS2 = {"type": "softmax", "heads": 2}
KINDS = ("encoder-decoder", "decoder", "gru")


@dataclass(frozen=True)
class GruState:
    """A state of a form unknown to decoding: a nested tuple, a plain number, a vector."""

    layers: tuple[tuple[Tensor], ...]
    steps: int = 0


class GruModel(Model):
    """A tiny Sutskever et al. 2014: one GRU cell reads the source, then generates. Implements only the contract."""

    kind = "encoder-decoder"

    def __init__(self, vocabulary: int, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.head = Head(nn.Parameter(torch.randn(vocabulary, width)), bias=True)

    def condition(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> GruState:
        zero_BD = self.head.weight_VD.new_zeros(source_BS.shape[0], self.cell.hidden_size)
        return GruState(self.hidden(source_BS, GruState(((zero_BD,),)), mask_BS)[1].layers)

    def hidden(self, tokens_BT: Tensor, state: GruState, mask_BT: Tensor | None = None) -> tuple[Tensor, GruState]:
        ((h_BD,),) = state.layers
        outputs = []
        for t in range(tokens_BT.shape[1]):
            new_BD = self.cell(self.embedding(tokens_BT[:, t]), h_BD)
            h_BD = new_BD if mask_BT is None else torch.where(mask_BT[:, t, None], new_BD, h_BD)
            outputs.append(h_BD)
        return torch.stack(outputs, dim=1), GruState(((h_BD,),), state.steps + tokens_BT.shape[1])

    def flops(self, source: int, target: int) -> int:
        return 0


def make_model(
    kind: str, vocabulary: int, sharpness: float = 1.0, positions: str | PositionConfig = "sinusoidal"
) -> Model:
    """Return a random model in float64, so that batches round alike. Sharp ones prefer few tokens."""
    sizes = Sizes(vocabulary, vocabulary)
    common = {"width": 8, "hidden": 12, "mixer": HEADS2, "positions": positions, "tied": False}
    model: Model
    if kind == "gru":
        model = GruModel(vocabulary)
    elif kind == "decoder":
        model = DecoderConfig(layers=2, **common).build(sizes)
    else:
        model = EncoderDecoderConfig(encoder_layers=1, decoder_layers=2, **common).build(sizes)
    with torch.no_grad():
        model.head.weight_VD.mul_(sharpness)
    return model.double()


@torch.no_grad()
def next_logprobs(model: Model, source: Sequence[int], prefixes: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return log P of every token after each prefix (all of one length), without cache or padding."""
    was = model.training
    model.eval()
    source_BS = torch.tensor([list(source) or [PAD]] * len(prefixes))
    mask_BS = None if source else torch.zeros_like(source_BS, dtype=torch.bool)  # empty: all of it is padding
    state = model.condition(source_BS, mask_BS)
    logits_BTV, _ = model.step(torch.tensor([[BOS, *prefix] for prefix in prefixes]), state)
    model.train(was)
    rows: list[list[float]] = logits_BTV[:, -1].log_softmax(dim=-1).tolist()
    return rows


def penalised(logprob: float, length: int, alpha: float) -> float:
    return logprob / ((5 + length) / 6) ** alpha


def exhaustive(model: Model, source: Sequence[int], longest: int, alpha: float) -> list[Hypothesis]:
    """Return every possible sequence, best first: finished ones, then those cut at the maximum length."""
    words = range(EOS + 1, model.head.weight_VD.shape[0])
    finished, cut = [], []
    beginnings: dict[tuple[int, ...], float] = {(): 0.0}
    for length in range(1, longest + 1):
        rows = dict(zip(beginnings, next_logprobs(model, source, list(beginnings)), strict=True))
        for ids, logprob in beginnings.items():
            whole = logprob + rows[ids][EOS]
            finished.append(Hypothesis(list(ids), whole, penalised(whole, length, alpha), True))
        beginnings = {
            (*ids, word): beginnings[ids] + rows[ids][word] for ids, word in itertools.product(beginnings, words)
        }
    for ids, logprob in beginnings.items():
        cut.append(Hypothesis(list(ids), logprob, penalised(logprob, longest, alpha), False))
    return sorted(finished, key=lambda h: -h.score) + sorted(cut, key=lambda h: -h.score)


def plain_beam(model: Model, source: Sequence[int], beam: int, longest: int, alpha: float) -> list[Hypothesis]:
    """Search as beam.py's docstring describes, with lists, one sentence, no state and no early stopping."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished = []
    for length in range(1, longest + 1):
        options = []
        rows = next_logprobs(model, source, [ids for _, ids in live])
        for (logprob, ids), row in zip(live, rows, strict=True):
            options += [(logprob + row[word], [*ids, word]) for word in range(EOS, len(row))]
        options = sorted(options, key=lambda option: -option[0])[: 2 * beam]
        for logprob, ids in options[:beam]:
            if ids[-1] == EOS:
                finished.append(Hypothesis(ids[:-1], logprob, penalised(logprob, length, alpha), True))
        live = [option for option in options if option[1][-1] != EOS][:beam]
    cut = [Hypothesis(ids, logprob, penalised(logprob, longest, alpha), False) for logprob, ids in live]
    return sorted(finished, key=lambda h: -h.score) + cut


def plain_greedy(model: Model, source: Sequence[int], longest: int) -> list[int]:
    """Take the argmax until EOS (kept at the end) or the maximum length."""
    ids: list[int] = []
    while len(ids) < longest and EOS not in ids:
        (row,) = next_logprobs(model, source, [ids])
        ids.append(max(range(EOS, len(row)), key=lambda word: row[word]))
    return ids
