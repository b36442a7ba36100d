"""Checks that an exported graph computes what our model computes, on random ids and on texts of the task.

- Whole sequences in a batch: logits must agree to `CLOSE`.
- Token by token through the state, as in decoding: the same logits again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allyouneed.decode.base import pad_right
from allyouneed.errors import FolderError
from allyouneed.interop.progress import ReportProgress, no_progress
from allyouneed.models import Model
from allyouneed.models.encoder_decoder import EncoderDecoder

CLOSE = 1e-3  # of logits; float32 of a few layers differs by 1e-6 to 1e-5
Prompt = tuple[list[int] | None, list[int]]  # a source, if the model has one, and the decoder's input


class OnnxModel:
    """A folder opened with onnxruntime."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3

        def opened(name: str) -> Any:
            path = folder / name
            if not path.exists():
                return None
            # Pass bytes: onnxruntime does not accept paths that are not valid text.
            return onnxruntime.InferenceSession(path.read_bytes(), options, ["CPUExecutionProvider"])

        self._encoder, self._decoder = opened("encoder.onnx"), opened("decoder.onnx")

    def start(self, sources: Sequence[list[int]] | None, rows: int) -> dict[str, Any]:
        """Return the inputs of the first step except its tokens."""
        state: dict[str, Any] = {}
        if sources is not None:
            source_BS, mask_BS = pad_right(sources, torch.device("cpu"))
            valid = np.ones(source_BS.shape, bool) if mask_BS is None else mask_BS.numpy()
            names = [one.name for one in self._encoder.get_outputs()]
            state = dict(
                zip(names, self._encoder.run(None, {"source": source_BS.numpy(), "valid": valid}), strict=True)
            )
            state["valid"] = valid
        for one in self._decoder.get_inputs():
            if one.name.startswith("past_"):
                shape = [{"B": rows, "P": 0}.get(size, size) for size in one.shape]
                state[one.name] = np.zeros(shape, np.int64 if one.type == "tensor(int64)" else np.float32)
        return state

    def step(self, tokens: Sequence[Sequence[int]], state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the logits (B, T, V), and the inputs of the next step."""
        names = [one.name for one in self._decoder.get_outputs()]
        found = dict(zip(names, self._decoder.run(None, {"tokens": np.asarray(tokens), **state}), strict=True))
        logits = found.pop("logits")
        return logits, {**state, **{name.replace("present", "past"): value for name, value in found.items()}}


def check_folder(
    folder: Path, model: Model, prompts: Sequence[Prompt], report: ReportProgress = no_progress
) -> list[str]:
    """Raise FolderError if the folder disagrees; else return notes on the agreement."""
    exported, furthest, done = OnnxModel(folder), 0.0, 0
    for length in {len(tokens) for _, tokens in prompts}:
        some = [one for one in prompts if len(one[1]) == length]  # rows of a batch have equal length
        tokens = [tokens for _, tokens in some]
        sources = [source for source, _ in some if source is not None]
        expected = _logits(model, sources, tokens)
        state = exported.start(sources or None, len(some))
        whole, _ = exported.step(tokens, state)
        single = []
        for place in range(length):
            logits, state = exported.step([[row[place]] for row in tokens], state)
            single.append(logits)
        for found in (whole, np.concatenate(single, axis=1)):
            gap = float(np.abs(found - expected).max())
            furthest = max(furthest, gap if gap == gap else float("inf"))
        done += len(some)
        report(done / len(prompts), f"{done} of {len(prompts)} sequences compared in both engines")
    if furthest > CLOSE:
        raise FolderError(f"onnx: logits differ from ours by {furthest:.2g}; nothing was written")
    return [f"checked on {len(prompts)} sequences, at once and step by step: logits within {furthest:.1e}"]


def _logits(model: Model, sources: list[list[int]], tokens: list[list[int]]) -> Any:
    with torch.inference_mode():
        if isinstance(model, EncoderDecoder):
            state: Any = model.condition(*pad_right(sources, torch.device("cpu")))
        else:
            state = model.start()
        logits_BTV, _ = model.step(torch.tensor(tokens), state)
    return logits_BTV.numpy()
