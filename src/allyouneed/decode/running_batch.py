"""A batch whose rows join and leave between steps: continuous batching, for any model with `step`.

Every row has its own settings, limit and stream of uniform numbers. It generates what `sample` generates, whatever the
other rows of the batch are. `join_rows` combines rows of different ages: a state defines how.

A row can be suspended: it leaves the batch and joins another one later, with its saved state. Without the state, the
prompt and the tokens so far are read again. Either way its tokens are those of a row that was never suspended.

Finished rows keep their slot in the state until compaction, when other rows join or many slots are empty: a state is
copied as a whole, which takes about as long as a step.

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
from allyouneed.decode.threads import kernel_threads
from allyouneed.mixers import State, select_rows
from allyouneed.mixers.parts.state import join_rows
from allyouneed.models import Model
from allyouneed.text.specials import BOS, EOS

EMPTY_SHARE = 8  # at most one slot in this many may be empty
End = Literal["stop", "length"]  # EOS, or the limit or the model's last position was reached


class SavedState(NamedTuple):
    """The state of a suspended row."""

    token_1: Tensor  # its last token
    state: State


@dataclass(eq=False)
class Row:
    """One target that is being generated."""

    prompt: Sequence[int]  # the target's first ids after BOS
    source: Sequence[int] | None
    config: SampleConfig  # how its tokens are drawn, and the maximum number (at least 1)
    uniforms: np.random.Generator  # from `sample.uniforms`
    top: int = 0  # number of alternatives to return for each token
    begin: int = BOS  # the id that is read first
    ids: list[int] = field(default_factory=list, init=False)  # generated so far, EOS included
    limit: int = field(default=0, init=False)  # maximum number of tokens, known when it joins
    drawn: list[float] = field(default_factory=list, init=False)  # a uniform number for each token, unless greedy
    sampling_key: Hashable = field(init=False)  # rows with the same key are drawn together
    saved: SavedState | None = field(default=None, init=False)  # while it is suspended

    def __post_init__(self) -> None:
        config = self.config
        cuts = (config.temperature, config.top_k, config.top_p, config.min_p, config.epsilon)
        self.sampling_key = None if config.temperature == 0 else cuts

    def prepare(self, model: Model) -> None:
        """Set the limit and draw the uniform numbers. May be called again for a row that failed to join."""
        self.limit = new_token_limit(model, self.config.max_length, self.prompt, self.source)
        if not self.drawn and self.sampling_key is not None:
            self.drawn = self.uniforms.random(self.limit).tolist()

    @property
    def context(self) -> Sequence[int]:
        """Return the ids of the text before the new tokens."""
        return self.prompt if self.begin == BOS else [self.begin, *self.prompt]

    @property
    def length(self) -> int:
        """Return how many tokens are read before the first new one."""
        return 1 + max(len(self.prompt) + len(self.ids), len(self.source or ()))

    @property
    def prefix(self) -> tuple[int, ...]:
        """Return the target's ids so far, prompt included."""
        return (*self.prompt, *self.ids)


class GeneratedToken(NamedTuple):
    """A new token of a row."""

    row: Row
    token: int
    logprob: float  # in the model's own distribution, before temperature and cuts
    top: list[tuple[int, float]]  # the best tokens at this place, best first
    end: End | None  # why it was the row's last token; None: it was not


class RunningBatch:
    """The rows that are being decoded, and their state. The model must be in evaluation mode."""

    def __init__(self, model: Model) -> None:
        self._model, self._device = model, device_of(model)
        self._reset()

    def _reset(self) -> None:
        self.rows: list[Row] = []
        self._slots: list[int] = []  # of each row in the state
        self._token_B = torch.empty(0, dtype=torch.long, device=self._device)  # the last token in each slot
        self._state: State = None

    def add(self, rows: Sequence[Row]) -> list[GeneratedToken]:
        """Add rows without a saved state and return the next token of each. If this fails, the batch is unchanged."""
        with torch.inference_mode():
            keys = [(row.begin, row.prefix, None if row.source is None else tuple(row.source)) for row in rows]
            first = {key: place for place, key in reversed(list(enumerate(keys)))}  # equal inputs are read once
            unique = [rows[place] for place in sorted(first.values())]
            state = start_state(self._model, [row.source for row in unique], self._device)
            if any(row.prefix for row in unique):
                token_AT, mask_AT = pad_left([[row.begin, *row.prefix] for row in unique], self._device)
                x_ATD, state = self._model.hidden(token_AT, state, mask_AT)
                logits = self._model.head(x_ATD[:, -1])
            else:
                begin_A = torch.tensor([row.begin for row in unique], device=self._device)
                logits, state = self._model.advance(begin_A, state)
            if len(unique) < len(rows):
                numbers = {key: number for number, key in enumerate(sorted(first, key=lambda key: first[key]))}
                group_B = torch.tensor([numbers[key] for key in keys], device=self._device)
                logits, state = logits.index_select(0, group_B), select_rows(state, group_B)
            self._compact()
            if self.rows:
                count_P = torch.tensor([len(self.rows), len(rows)], device=self._device)
                state = join_rows([self._state, state], count_P)
            for row in rows:
                row.prepare(self._model)
            generated, tokens = self._choose(rows, logits)
            token_B = torch.cat([self._token_B, tokens])
            # Nothing below can fail.
            self._state, self._token_B = state, token_B
            self.rows = [*self.rows, *rows]
            self._slots = list(range(len(self.rows)))
            self._record(generated)
        return generated

    def step(self) -> list[GeneratedToken]:
        """Return the next token of every row and drop finished rows. If this fails, the batch is unchanged."""
        with torch.inference_mode(), kernel_threads(self._model, len(self._token_B)):
            if (len(self._token_B) - len(self.rows)) * EMPTY_SHARE > len(self._token_B):
                self._compact()
            logits_BV, state = self._advance()
            slot_N = None if self._is_full else torch.tensor(self._slots, device=self._device)
            generated, token_N = self._choose(self.rows, logits_BV if slot_N is None else logits_BV[slot_N])
            token_B = token_N if slot_N is None else self._token_B.index_copy(0, slot_N, token_N)
            self._state, self._token_B = state, token_B  # nothing below can fail
            self._record(generated)
        return generated

    def suspend(self, rows: Sequence[Row]) -> None:
        """Remove rows and save their states, so that they can join again by `resume`."""
        place_of = {id(row): place for row, place in zip(self.rows, self._slots, strict=True)}
        with torch.inference_mode():
            for row in rows:
                slot_1 = torch.tensor([place_of[id(row)]], device=self._device)
                # A selection may refer to the buffers of the whole batch; joining it copies what the row needs.
                state = join_rows([select_rows(self._state, slot_1)], torch.ones_like(slot_1))
                row.saved = SavedState(self._token_B[slot_1], state)
        self.remove(rows)

    def resume(self, rows: Sequence[Row]) -> None:
        """Add suspended rows with their saved states. If this fails, the batch is unchanged."""
        saved = [row.saved for row in rows if row.saved is not None]
        assert len(saved) == len(rows), "a row without a saved state"
        with torch.inference_mode():
            self._compact()
            parts, counts = [one.state for one in saved], [1] * len(saved)
            if self.rows:
                parts, counts = [self._state, *parts], [len(self.rows), *counts]
            state = join_rows(parts, torch.tensor(counts, device=self._device))
            token_B = torch.cat([self._token_B, *(one.token_1 for one in saved)])
        # Nothing below can fail.
        self._state, self._token_B = state, token_B
        self.rows = [*self.rows, *rows]
        self._slots = list(range(len(self.rows)))
        for row in rows:
            row.saved = None

    def remove(self, rows: Collection[Row]) -> None:
        """Remove rows before they are finished."""
        self._drop({id(row) for row in rows})

    def failing(self) -> list[tuple[Row, Exception]]:
        """Return the rows whose next step fails when run alone, such as one beyond the last learned position."""
        found = []
        for place, row in zip(self._slots, self.rows, strict=True):
            slot_1 = torch.tensor([place], device=self._device)
            try:
                with torch.inference_mode():
                    self._model.advance(self._token_B[slot_1], select_rows(self._state, slot_1))
            except Exception as error:
                found.append((row, error))
        return found

    @property
    def _is_full(self) -> bool:
        return len(self._slots) == len(self._token_B)

    def _advance(self) -> tuple[Tensor, State]:
        try:
            return self._model.advance(self._token_B, self._state)
        except Exception:
            if self._is_full:
                raise
            self._compact()  # a finished row may be beyond the last learned position
            return self._model.advance(self._token_B, self._state)

    def _record(self, generated: Sequence[GeneratedToken]) -> None:
        for one in generated:
            one.row.ids.append(one.token)
        self._drop({id(one.row) for one in generated if one.end is not None})

    def _drop(self, dropped: Collection[int]) -> None:
        """Drop rows; their slots stay empty until compaction."""
        if not dropped:
            return
        kept = [place for place, row in enumerate(self.rows) if id(row) not in dropped]
        self.rows = [self.rows[number] for number in kept]
        self._slots = [self._slots[number] for number in kept]
        if not self.rows:
            self._reset()

    def _compact(self) -> None:
        """Remove empty slots from the state."""
        if not self._is_full:
            slot_N = torch.tensor(self._slots, device=self._device)
            self._token_B, self._state = self._token_B[slot_N], select_rows(self._state, slot_N)
            self._slots = list(range(len(self.rows)))

    def _choose(self, rows: Sequence[Row], logits_BV: Tensor) -> tuple[list[GeneratedToken], Tensor]:
        """Return a token for each row (B); rows with the same settings are drawn together."""
        logits_BV = as_float32(logits_BV)
        token_B = torch.empty(len(rows), dtype=torch.long, device=self._device)
        logprob_B = torch.empty(len(rows), dtype=logits_BV.dtype, device=self._device)
        groups: dict[Hashable, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(row.sampling_key, []).append(place)
        for sampling_key, places in groups.items():
            chosen = [rows[place] for place in places]
            numbers = [0.0 if sampling_key is None else row.drawn[len(row.ids)] for row in chosen]
            uniform_N = torch.tensor(numbers, dtype=torch.float64).to(self._device)
            if len(places) == len(rows):
                token_B, logprob_B = draw_token(logits_BV, chosen[0].config, uniform_N)
                break
            slot_N = torch.tensor(places, device=self._device)
            token_B[slot_N], logprob_B[slot_N] = draw_token(logits_BV[slot_N], chosen[0].config, uniform_N)
        alternatives = self._alternatives(rows, logits_BV)
        generated = []
        for row, token, logprob, top in zip(rows, token_B.tolist(), logprob_B.tolist(), alternatives, strict=True):
            end: End | None = "stop" if token == EOS else "length" if len(row.ids) + 1 >= row.limit else None
            generated.append(GeneratedToken(row, token, logprob, top, end))
        return generated, token_B

    def _alternatives(self, rows: Sequence[Row], logits_BV: Tensor) -> list[list[tuple[int, float]]]:
        found: list[list[tuple[int, float]]] = [[] for _ in rows]
        places = [place for place, row in enumerate(rows) if row.top]
        if places:
            most = max(rows[place].top for place in places)
            logprob_NC, word_NC = top_tokens(logits_BV[torch.tensor(places, device=self._device)], most)
            for place, words, logprobs in zip(places, word_NC.tolist(), logprob_NC.tolist(), strict=True):
                found[place] = list(zip(words, logprobs, strict=True))[: rows[place].top]
        return found
