"""A batch that rows join and leave between steps: continuous batching, for any model that can step.

Every row has settings, a limit and a stream of uniform numbers of its own, so what it says is what `sample` says, and
does not depend on its neighbours. Rows of different ages stand side by side as `join_rows` says: a state knows how.

Who leaves is not heard of any more, but its place in the state stays empty until others join or many are empty: a state
is copied as a whole, which takes about as long as a step.

Idea: Yu et al. 2022, "Orca" (OSDI), iteration-level scheduling.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allyouneed.decode.base import as_float32, device_of, new_token_limit, pad_left, start_state, top_tokens
from allyouneed.decode.sample import SampleConfig, draw_token
from allyouneed.mixers import State, select_rows
from allyouneed.mixers.parts.state import join_rows
from allyouneed.models import Model
from allyouneed.text.specials import BOS, EOS

EMPTY = 8  # one place in so many may be empty
End = Literal["stop", "length"]  # EOS was said, or the limit was reached, or the model's last position


@dataclass(eq=False)
class Row:
    """One answer that is being decoded."""

    prompt: Sequence[int]  # the target's first ids after BOS
    source: Sequence[int] | None
    config: SampleConfig  # how its tokens are drawn, and how many at most (at least 1)
    uniforms: np.random.Generator  # of `sample.uniforms`
    top: int = 0  # how many alternatives to each token are wanted
    ids: list[int] = field(default_factory=list, init=False)  # said so far, EOS included
    most: int = field(default=0, init=False)  # that it may say, known when it joins
    drawn: list[float] = field(default_factory=list, init=False)  # a number for each token, if it needs them
    manner: Hashable = field(init=False)  # rows of the same one draw together

    def __post_init__(self) -> None:
        config = self.config
        cuts = (config.temperature, config.top_k, config.top_p, config.min_p)
        self.manner = None if config.temperature == 0 else cuts

    def get_ready(self, model: Model) -> None:
        """Before its first token; a row that failed to join may try again."""
        self.most = new_token_limit(model, self.config.max_length, self.prompt, self.source)
        if not self.drawn and self.manner is not None:
            self.drawn = self.uniforms.random(self.most).tolist()

    @property
    def length(self) -> int:
        """How much there is to read before the first token."""
        return 1 + max(len(self.prompt), len(self.source or ()))


class GeneratedToken(NamedTuple):
    """A token of a row."""

    row: Row
    token: int
    logprob: float  # in the model's own distribution
    top: list[tuple[int, float]]  # the best tokens there, best first
    end: End | None  # why it was the row's last


class RunningBatch:
    """The rows that are being decoded, and their state. The model is in evaluation mode, as folders give it."""

    def __init__(self, model: Model) -> None:
        self._model, self._device = model, device_of(model)
        self._empty()

    def _empty(self) -> None:
        self.rows: list[Row] = []
        self._places: list[int] = []  # of the rows in the state
        self._token_B = torch.empty(0, dtype=torch.long, device=self._device)  # said last at each place
        self._state: State = None

    def add(self, rows: Sequence[Row]) -> list[GeneratedToken]:
        """Some more rows, each with its first token. If this fails, the batch is as it was."""
        with torch.inference_mode():
            keys = [(tuple(row.prompt), None if row.source is None else tuple(row.source)) for row in rows]
            first = {key: place for place, key in reversed(list(enumerate(keys)))}  # what several ask is read once
            asked = [rows[place] for place in sorted(first.values())]
            state = start_state(self._model, [row.source for row in asked], self._device)
            if any(row.prompt for row in asked):
                token_AT, mask_AT = pad_left([[BOS, *row.prompt] for row in asked], self._device)
                x_ATD, state = self._model.hidden(token_AT, state, mask_AT)
                logits = self._model.head(x_ATD[:, -1])
            else:
                logits, state = self._model.advance(torch.full((len(asked),), BOS, device=self._device), state)
            if len(asked) < len(rows):
                numbers = {key: number for number, key in enumerate(sorted(first, key=lambda key: first[key]))}
                group_B = torch.tensor([numbers[key] for key in keys], device=self._device)
                logits, state = logits.index_select(0, group_B), select_rows(state, group_B)
            self._close_up()
            if self.rows:
                count_P = torch.tensor([len(self.rows), len(rows)], device=self._device)
                state = join_rows([self._state, state], count_P)
            for row in rows:
                row.get_ready(self._model)
            said, tokens = self._choose(rows, logits)
            token_B = torch.cat([self._token_B, tokens])
            # From here on nothing can fail.
            self._state, self._token_B = state, token_B
            self.rows = [*self.rows, *rows]
            self._places = list(range(len(self.rows)))
            self._hear(said)
        return said

    def step(self) -> list[GeneratedToken]:
        """The next token of every row; rows whose last it is have left. If this fails, the batch is as it was."""
        with torch.inference_mode():
            if (len(self._token_B) - len(self.rows)) * EMPTY > len(self._token_B):
                self._close_up()
            logits_BV, state = self._advance()
            here_N = None if self._full else torch.tensor(self._places, device=self._device)
            said, token_N = self._choose(self.rows, logits_BV if here_N is None else logits_BV[here_N])
            token_B = token_N if here_N is None else self._token_B.index_copy(0, here_N, token_N)
            self._state, self._token_B = state, token_B  # from here on nothing can fail
            self._hear(said)
        return said

    def remove(self, rows: Collection[Row]) -> None:
        """Rows that nobody waits for any more."""
        self._leave({id(row) for row in rows})

    def failing(self) -> list[tuple[Row, Exception]]:
        """The rows whose next step fails, each alone: a position beyond what a model has learnt, for one."""
        found = []
        for place, row in zip(self._places, self.rows, strict=True):
            here_1 = torch.tensor([place], device=self._device)
            try:
                with torch.inference_mode():
                    self._model.advance(self._token_B[here_1], select_rows(self._state, here_1))
            except Exception as error:
                found.append((row, error))
        return found

    @property
    def _full(self) -> bool:
        return len(self._places) == len(self._token_B)

    def _advance(self) -> tuple[Tensor, State]:
        try:
            return self._model.advance(self._token_B, self._state)
        except Exception:
            if self._full:
                raise
            self._close_up()  # what nobody hears of may be beyond the positions that a model has learnt
            return self._model.advance(self._token_B, self._state)

    def _hear(self, said: Sequence[GeneratedToken]) -> None:
        for one in said:
            one.row.ids.append(one.token)
        self._leave({id(one.row) for one in said if one.end is not None})

    def _leave(self, gone: Collection[int]) -> None:
        """Their places are empty from now on."""
        if not gone:
            return
        left = [place for place, row in enumerate(self.rows) if id(row) not in gone]
        self.rows = [self.rows[number] for number in left]
        self._places = [self._places[number] for number in left]
        if not self.rows:
            self._empty()

    def _close_up(self) -> None:
        """No place is empty any more."""
        if not self._full:
            here_N = torch.tensor(self._places, device=self._device)
            self._token_B, self._state = self._token_B[here_N], select_rows(self._state, here_N)
            self._places = list(range(len(self.rows)))

    def _choose(self, rows: Sequence[Row], logits_BV: Tensor) -> tuple[list[GeneratedToken], Tensor]:
        """A token for each row (B); rows with the same settings draw together."""
        logits_BV = as_float32(logits_BV)
        token_B = torch.empty(len(rows), dtype=torch.long, device=self._device)
        logprob_B = torch.empty(len(rows), dtype=logits_BV.dtype, device=self._device)
        groups: dict[Hashable, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(row.manner, []).append(place)
        for manner, places in groups.items():
            chosen = [rows[place] for place in places]
            numbers = [0.0 if manner is None else row.drawn[len(row.ids)] for row in chosen]
            uniform_N = torch.tensor(numbers, dtype=torch.float64).to(self._device)
            if len(places) == len(rows):
                token_B, logprob_B = draw_token(logits_BV, chosen[0].config, uniform_N)
                break
            here_N = torch.tensor(places, device=self._device)
            token_B[here_N], logprob_B[here_N] = draw_token(logits_BV[here_N], chosen[0].config, uniform_N)
        tops = self._alternatives(rows, logits_BV)
        said = []
        for row, token, logprob, top in zip(rows, token_B.tolist(), logprob_B.tolist(), tops, strict=True):
            end: End | None = "stop" if token == EOS else "length" if len(row.ids) + 1 >= row.most else None
            said.append(GeneratedToken(row, token, logprob, top, end))
        return said, token_B

    def _alternatives(self, rows: Sequence[Row], logits_BV: Tensor) -> list[list[tuple[int, float]]]:
        found: list[list[tuple[int, float]]] = [[] for _ in rows]
        places = [place for place, row in enumerate(rows) if row.top]
        if places:
            most = max(rows[place].top for place in places)
            logprob_NC, word_NC = top_tokens(logits_BV[torch.tensor(places, device=self._device)], most)
            for place, words, logprobs in zip(places, word_NC.tolist(), logprob_NC.tolist(), strict=True):
                found[place] = list(zip(words, logprobs, strict=True))[: rows[place].top]
        return found
