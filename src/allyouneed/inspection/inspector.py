"""The part of an inspection that is the same for all kinds of models."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import as_float32, device_of, evaluating, evaluation_mode
from allyouneed.errors import DataError
from allyouneed.folder import Bundle
from allyouneed.inspection.maps import AttentionMap
from allyouneed.inspection.result import Axis, Inspection, LayerMaps, OutputToken, Part, token_texts
from allyouneed.inspection.vectors import Vectors
from allyouneed.text.tokenizer import Tokenizer

MAX_INFLUENCE_ROWS = 64  # tokens whose influences are computed: each needs a backward pass
MAX_WEIGHTS = 4_000_000  # of all maps together: about 25 MB as JSON


class Inspector(ABC):
    """Sets up the ids of a text, runs the model once, and records its maps."""

    def __init__(self, bundle: Bundle, text: str, longest: int) -> None:
        self.bundle, self.model, self.codec, self.text = bundle, bundle.model, bundle.codec, text
        self.longest, self.device = longest, device_of(bundle.model)
        self.source_ids: list[int] | None = None
        self.input_ids: list[int] | None = None
        self.target_ids: list[int] | None = None
        self.given = 0  # tokens of the target that the model did not generate

    def _require_short(self, what: str, tokenizer: Tokenizer, text: str) -> None:
        if tokenizer.surely_longer(text, self.longest) or len(tokenizer.encode(text)) > self.longest:
            raise DataError(f"{what}: more than {self.longest} tokens; maps are limited to shorter texts")

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.device)

    @abstractmethod
    def _run(self) -> tuple[Tensor, list[tuple[str, AttentionMap]]]:
        """Return the logits of all positions (T, V), and each map with its phase ("read" or "write")."""

    def inspect(self, alternatives: int) -> Inspection:
        """Run the model and return what it did, with up to `alternatives` candidates for each output token."""
        with evaluating(self.model):
            logits_TV, found = self._run()
            logprob_TV = as_float32(logits_TV).log_softmax(dim=-1)
        maps = self._layer_maps(found)
        note = ""
        if not any(one.columns != "other" for one in maps):
            traced, note = self._influence(bool(maps))
            maps = [*traced, *maps]
        _require_few(maps)
        return Inspection(
            self._texts(self.source_ids, self.codec.source),
            self._texts(self.target_ids, self.codec.target),
            self._texts(self.input_ids, self.codec.target or self.codec.source),
            self._answer(logprob_TV),
            self._outputs(logprob_TV, alternatives),
            maps,
            note,
        )

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _texts(self, ids: Sequence[int] | None, tokenizer: Tokenizer | None) -> list[str] | None:
        return None if ids is None or tokenizer is None else token_texts(tokenizer, ids)

    def _answer(self, logprob_TV: Tensor) -> str:
        return "" if self.target_ids is None else self.codec.decode_target(self.target_ids[self.given :])

    def _outputs(self, logprob_TV: Tensor, alternatives: int) -> list[OutputToken]:
        assert self.codec.target is not None
        ids = self.target_ids or []
        best = logprob_TV[-len(ids) :].topk(min(alternatives, logprob_TV.shape[1]), dim=-1) if ids else None
        outputs = []
        for place, token in enumerate(ids):
            assert best is not None
            names = token_texts(self.codec.target, best.indices[place].tolist())
            logprob = float(logprob_TV[place - len(ids), token])
            choices = list(zip(names, best.values[place].tolist(), strict=True))
            text = token_texts(self.codec.target, [token])[0]
            outputs.append(OutputToken(text, logprob, choices, place < self.given))
        return outputs

    # --- maps --------------------------------------------------------------------------------------------------------

    def _length(self, axis: Axis) -> int | None:
        ids = {"source": self.source_ids, "target": self.target_ids, "input": self.input_ids}.get(axis)
        return None if ids is None else len(ids)

    @abstractmethod
    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        """Return the part, the rows and the columns of a module's map in a phase, if their lengths agree."""

    def _layer_maps(self, found: list[tuple[str, AttentionMap]]) -> list[LayerMaps]:
        placed: list[LayerMaps] = []
        for phase, one in found:
            weights_HTS = one.weights_BHTS[0].float()
            H, T, S = weights_HTS.shape
            part, rows, columns = self._axes(one.name, phase)
            rows = rows if self._length(rows) == T else "other"
            columns = columns if self._length(columns) == S else "other"
            part = "other" if "other" in (rows, columns) else part
            number = re.search(r"\.(\d+)(?=\.|$)", one.name)
            layer = 1 + (int(number[1]) if number else sum(other.part == part for other in placed))
            placed.append(
                LayerMaps(one.name, layer, part, rows, columns, self.model.head_names(one.name, H), weights_HTS)
            )
        return placed

    # --- influence ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        """Run the model with gradients. Return log P (T, V) of the last rows, and the embeddings of its tokens."""

    def _chosen(self, logprob_TV: Tensor) -> list[int]:
        return self.target_ids or []

    def _row_axis(self) -> Axis:
        return "target"

    def _influence(self, has_other_maps: bool) -> tuple[list[LayerMaps], str]:
        """Return maps of how much each token read influences each token output, and a note about them."""
        with evaluation_mode(self.model), torch.enable_grad(), Vectors() as vectors:
            logprob_TV, read = self._traced(vectors)
            chosen = self._chosen(logprob_TV)
            if not read or not logprob_TV.requires_grad or not 0 < len(chosen) <= MAX_INFLUENCE_ROWS:
                too_many = len(chosen) > MAX_INFLUENCE_ROWS
                why = f"influence is limited to {MAX_INFLUENCE_ROWS} tokens" if too_many else "no gradient to follow"
                return [], "" if has_other_maps else f"This model has no attention, and {why}: there is no map to show."
            rows = _gradient_norms(logprob_TV, chosen, [x_BTD for _, x_BTD in read])
        total_T = sum(torch.stack(kept).sum(dim=1) for kept in rows)
        assert isinstance(total_T, Tensor)
        maps = []
        for (axis, _), kept in zip(read, rows, strict=True):
            weights_TS = torch.stack(kept) / total_T.clamp_min(1e-30)[:, None]
            part: Part = "encoder" if self._row_axis() == axis else "cross" if axis == "source" else "decoder"
            row: Axis = self._row_axis() if len(chosen) > 1 or self._length(self._row_axis()) == 1 else "other"
            maps.append(LayerMaps("influence", 1, part, row, axis, ["influence"], weights_TS.detach().cpu()[None]))
        note = (
            "This model does not weigh tokens. The map shows influence: the norm of the gradient of each output's "
            "log-probability with respect to each token's embedding, as shares of a row."
        )
        return maps, note


def _gradient_norms(logprob_TV: Tensor, chosen: Sequence[int], inputs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return for each input, and for each chosen token, the gradient norms of all positions."""
    norms: list[list[Tensor]] = [[] for _ in inputs]
    for place, token in enumerate(chosen):
        output = logprob_TV[place - len(chosen), token]
        gradients = torch.autograd.grad(output, inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
        for kept, gradient in zip(norms, gradients, strict=True):
            kept.append(gradient[0].norm(dim=-1))
    return norms


def _require_few(maps: Sequence[LayerMaps]) -> None:
    weights = sum(one.weights_HTS.numel() for one in maps)
    if weights > MAX_WEIGHTS:
        raise DataError(f"text: its maps have {weights:,} weights; at most {MAX_WEIGHTS:,}: use a shorter text")


def embeddings_of(vectors: Vectors, axis: Axis, length: int, start: int = 0) -> list[tuple[Axis, Tensor]]:
    """Return the token embeddings: the first vectors of the right length. Position embeddings may follow them."""
    found = [x for x in vectors.found[start:] if x.dim() == 3 and x.shape[1] == length]
    return [(axis, found[0])] if found else []
