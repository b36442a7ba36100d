"""End-to-End Memory Network: a question reads a memory of sentences several times, then is answered.

    m_i = sum_j l_j . A x_ij + T_A(i),    c_i = sum_j l_j . C x_ij + T_C(i),    u = sum_j l_j . B q_j
    p_i = softmax_i(u . m_i),   o = sum_i p_i c_i,   u' = u + o                 one hop; the next one starts from u'
    P(answer) = softmax(W u)                                                    after the last

x_ij is word j of sentence i, one-hot; i = 1 is the latest sentence. Words are weighted by their place in the sentence:

    l_kj = (1 - j / J) - (k / d) (1 - 2 j / J)       position encoding: J words, coordinate k of d (both from 1)
    l_kj = 1                                         bag of words

Tying `adjacent`: A^1 = B, A^{k+1} = C^k, W^T = C^K, likewise T. Tying `layer-wise` (an RNN): A and C are those of every
hop, B and W matrices of their own, and u' = H u + o.
Linear start: the softmax is omitted (p_i = u . m_i) for the first `linear_start` steps of training.
Noise: in training, up to `noise` empty memories per sentence are inserted at random places and shift T's argument.

A source is sentences with separators, the question last: `BOS s_1 . s_2 . question` of tasks/babi.py. Words are not
looked up: they are counted per sentence (weighted by l, with the sentence's time as one more word), and one product
with all matrices concatenated gives the memories of every hop.
Cost: O(M (V + M) D K) for M sentences and a vocabulary of V, which is small (bAbI: 20 to 160); path 1.
Paper: Sukhbaatar et al. 2015, arXiv:1503.08895.
Differs: the softmax is inserted after a number of steps, where the paper waits for the validation loss to stop falling;
an empty memory gets no attention; W is the tied matrix only if answers are words (`Sizes.shared`).
"""

import math
from typing import Annotated, Literal, final

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from allyouneed.dropout import uniform
from allyouneed.mixers.base import map_sink
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.sizes import Sizes

DEVIATION = 0.1  # standard deviation of initial weights (section 4.2)


class MemN2NConfig(ModelConfig):
    summary = "End-to-End Memory Network: a question reads sentences in several hops"
    paper = "Sukhbaatar et al. 2015, arXiv:1503.08895"
    kind = "encoder"

    type: Literal["memn2n"] = "memn2n"
    width: PositiveInt = 20
    hops: PositiveInt = 3
    tying: Literal["adjacent", "layer-wise"] = "adjacent"
    words: Literal["position", "bag"] = "position"  # how the words of a sentence are combined
    memory: PositiveInt = 50  # number of sentences kept; older ones are dropped
    noise: Annotated[float, Field(ge=0, le=1)] = 0.1  # maximum of empty memories per sentence, in training
    linear_start: NonNegativeInt = 0  # training steps without softmax
    separators: tuple[NonNegativeInt, ...] = (1, 4)  # ids between sentences: BOS and the full stop of tasks/babi.py

    def check_steps(self, steps: int) -> None:
        if steps <= self.linear_start:
            raise ValueError(f"model.linear_start={self.linear_start} should be below train.budget.steps={steps}")

    def build(self, sizes: Sizes) -> "MemN2N":
        return MemN2N(self, sizes)


class Hop(nn.Module):
    """p = softmax(u . m), o = sum p c."""

    def forward(self, u_BD: Tensor, m_BMD: Tensor, c_BMD: Tensor, mask_BM1: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the output of the memory and the weight of each sentence; without a mask, without the softmax."""
        u_BD1 = u_BD.unsqueeze(2)
        score_BM1 = torch.bmm(m_BMD, u_BD1) if mask_BM1 is None else torch.baddbmm(mask_BM1, m_BMD, u_BD1)
        p_BM1 = score_BM1 if mask_BM1 is None else score_BM1.softmax(dim=1)
        return torch.bmm(p_BM1.mT, c_BMD).squeeze(1), p_BM1.squeeze(2)


class Sentences:
    """The sentence of each word of a source. A sentence is a run of words; the last run is the question.

    Places are numbered as in the paper: 0 is the question, 1 the latest sentence, M the oldest one kept; M + 1 is for
    dropped sentences and for ids that are not words.
    """

    def __init__(self, source_BS: Tensor, mask_BS: Tensor | None, separators: tuple[int, ...], places: int) -> None:
        real_BS = torch.ones_like(source_BS, dtype=torch.bool) if mask_BS is None else mask_BS
        parts_BS = torch.zeros_like(real_BS)
        for separator in separators:
            parts_BS |= source_BS == separator
        parts_BS &= real_BS
        word_BS = real_BS & ~parts_BS
        # A run is identified by the number of separators before it; runs with words are sentences.
        run_BS = parts_BS.long().cumsum(dim=1)
        latest_BS = run_BS.masked_fill(~word_BS, -1).cummax(dim=1).values
        first_BS = word_BS & (run_BS > nn.functional.pad(latest_BS[:, :-1], (1, 0), value=-1))
        sentence_BS = first_BS.long().cumsum(dim=1)
        asks_BS = word_BS & (run_BS == run_BS[:, -1:])
        count_B1 = sentence_BS[:, -1:] - asks_BS.any(dim=1, keepdim=True).long()
        self.count_B1 = count_B1.clamp(max=places)
        self.place_BS = (count_B1 + 1 - sentence_BS).clamp(max=places + 1).masked_fill(~word_BS, places + 1)
        # The place of a word in its sentence, from 1, and the length of the sentence: j and J of the paper.
        seen_BS = word_BS.long().cumsum(dim=1)
        before_BS = (seen_BS - 1).masked_fill(~first_BS, 0).cummax(dim=1).values
        self.j_BS = seen_BS - before_BS
        sizes_BP = torch.zeros(source_BS.shape[0], places + 2, dtype=torch.long, device=source_BS.device)
        self.length_BS = sizes_BP.scatter_add(1, self.place_BS, word_BS.long()).gather(1, self.place_BS).clamp(min=1)

    def on_words(self, p_BM: Tensor) -> Tensor:
        """Distribute the weight of each sentence equally over its words."""
        p_BP = nn.functional.pad(p_BM, (1, 1))
        return p_BP.gather(1, self.place_BS) / self.length_BS


@final
class MemN2N(Model):
    kind = "encoder"
    config: MemN2NConfig

    def __init__(self, config: MemN2NConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        adjacent = config.tying == "adjacent"
        tables = config.hops + 1 if adjacent else 3  # A^1 = B, C^1 = A^2, ..., C^K; or A, C, B
        timed = tables if adjacent else 2
        self.words = nn.ParameterList([_weight(sizes.source, config.width) for _ in range(tables)])
        self.times = nn.ParameterList([_weight(config.memory, config.width) for _ in range(timed)])
        self.h_DD = None if adjacent else _weight(config.width, config.width)
        tied = adjacent and sizes.shared
        self.head = Head(self.words[-1] if tied else _weight(sizes.target, config.width))
        self.hops = nn.ModuleList([Hop() for _ in range(config.hops)])
        self.linear: Tensor
        self.register_buffer("linear", torch.full((), config.linear_start > 0))

    def after_step(self, step: int) -> None:
        self.linear.fill_(step < self.config.linear_start)

    def classify(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        M, D, V = self._places(source_BS.shape[1]), self.config.width, self._kinds * self.sizes.source
        sentences = Sentences(source_BS, mask_BS, self.config.separators, M)
        real_BM = torch.arange(M, device=source_BS.device) < sentences.count_B1
        counts_PBX = self._count(source_BS, sentences, real_BM)
        table_XW = torch.cat([self._weighed(self.words[: len(self.times)]), torch.cat(list(self.times), dim=1)])
        # Places without a sentence have no counts, so they are zero; here places come before rows.
        memories = (counts_PBX[1 : M + 1] @ table_XW).transpose(0, 1).split(D, dim=-1)
        adjacent = self.h_DD is None
        u_BD = counts_PBX[0, :, :V] @ self._weighed(self.words[:1] if adjacent else self.words[2:])
        mask_BM1 = None
        if not self.linear:
            mask_BM1 = u_BD.new_zeros(real_BM.shape).masked_fill_(~real_BM, torch.finfo(u_BD.dtype).min).unsqueeze(2)
        sink = map_sink()
        for number, hop in enumerate(self.hops):
            m_BMD, c_BMD = memories[number : number + 2] if adjacent else memories
            o_BD, p_BM = hop(u_BD, m_BMD, c_BMD, mask_BM1)
            if sink is not None:
                sink(hop, sentences.on_words(p_BM)[:, None, None])
            u_BD = o_BD + (u_BD if self.h_DD is None else nn.functional.linear(u_BD, self.h_DD))
        logits_BV: Tensor = self.head(u_BD)
        return logits_BV

    def _places(self, length: int) -> int:
        """Return how many sentences are kept of a source of `length` ids, which has at most half as many."""
        return max(1, min(self.config.memory, length // 2))

    def _count(self, source_BS: Tensor, sentences: Sentences, real_BM: Tensor) -> Tensor:
        """Return the counts of each place: weighted words, of two kinds as l_kj = a_j - (k / d) b_j, and its time."""
        (B, M), V, kinds, dtype = real_BM.shape, self.sizes.source, self._kinds, self.head.weight_VD.dtype
        X, device = kinds * V + self.config.memory, source_BS.device
        share_BS = sentences.j_BS.to(dtype) / sentences.length_BS
        weights = [torch.ones_like(share_BS)] if kinds == 1 else [1 - share_BS, 1 - 2 * share_BS]
        row_B1 = X * torch.arange(B, device=device)[:, None]
        word_BS = sentences.place_BS * (B * X) + row_B1 + source_BS
        counts_N = torch.zeros((M + 2) * B * X, dtype=dtype, device=device)
        for kind, weight_BS in enumerate(weights):
            counts_N.scatter_add_(0, (word_BS + kind * V).flatten(), weight_BS.flatten())
        place_M = torch.arange(1, M + 1, device=device)
        time_BM = place_M * (B * X) + row_B1 + kinds * V + self._times(sentences.count_B1, M)
        counts_N.scatter_add_(0, time_BM.flatten(), real_BM.flatten().to(dtype))
        return counts_N.view(M + 2, B, X)

    @property
    def _kinds(self) -> int:
        return 2 if self.config.words == "position" else 1

    def _weighed(self, words: nn.ParameterList) -> Tensor:
        """Return the concatenated matrices; below them, for the second kind of count, the subtracted term."""
        words_VW = torch.cat(list(words), dim=1)
        if self._kinds == 1:
            return words_VW
        d = self.config.width
        k_D = torch.arange(-1, -d - 1, -1, dtype=words_VW.dtype, device=words_VW.device) / d
        return torch.cat([words_VW, words_VW * k_D.repeat(len(words))])

    def _times(self, count_B1: Tensor, M: int) -> Tensor:
        """Return the time of the sentence in each place; in training some times are skipped, for empty memories."""
        place_M = torch.arange(M, device=count_B1.device)
        if not (self.training and self.config.noise):
            return place_M.expand(count_B1.shape[0], M)
        most_B1 = (self.config.noise * count_B1).ceil()
        E = math.ceil(self.config.noise * M)
        random_2BE = uniform((2, count_B1.shape[0], E), count_B1.device)
        # A uniform number of empty memories up to `most`; each is before a random sentence, or last.
        empty_B1 = (random_2BE[0, :, :1] * (most_B1 + 1)).floor()
        place_BE = (random_2BE[1] * (count_B1 + 1)).floor()
        place_BE = place_BE.masked_fill(torch.arange(E, device=count_B1.device) >= empty_B1, M)
        skipped_BM = (place_BE[:, None, :] <= place_M[:, None]).sum(dim=2)
        return (place_M + skipped_BM).clamp(max=self.config.memory - 1)

    def flops(self, source: int, target: int) -> int:
        D, M, V = self.config.width, self._places(source), self._kinds * self.sizes.source
        reading = 2 * M * (V + self.config.memory) * len(self.times) * D + 2 * V * D
        hop = 4 * M * D + (0 if self.h_DD is None else 2 * D * D)
        return reading + self.config.hops * hop + 2 * D * self.sizes.target


def _weight(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * DEVIATION)
