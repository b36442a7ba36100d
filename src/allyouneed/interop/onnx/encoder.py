"""An encoder as one ONNX graph.

    encoder.onnx   source (B, S), valid (B, S) -> vectors (B, S, D) [, pooled (B, D)] [, logits (B, V) or (B, S, V)]

`vectors` are the states of the last layer. A model with a pool has `pooled`, the input of its output projection; one
with classes, or a word for each position, has `logits`. Sources are padded at the end.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allyouneed.decode.base import pad_right
from allyouneed.errors import FolderError
from allyouneed.folder import Bundle
from allyouneed.interop.check_inputs import LONGEST, framed, random_rows
from allyouneed.interop.onnx.check import CLOSE
from allyouneed.interop.onnx.graph import FLOAT, Graph
from allyouneed.interop.onnx.transformer import KNOWN, Operations
from allyouneed.interop.supported_settings import require_supported_encoder
from allyouneed.interop.text_program import text_functions
from allyouneed.models import Model
from allyouneed.models.encoder import Encoder
from allyouneed.text.codec import Codec

FILE = "encoder.onnx"
BATCH = 4  # rows that are compared at once, padded to the longest


def encoder_graph(model: Model) -> Graph:
    """Return the graph of an encoder."""
    encoder = require_supported_encoder(model, "onnx", KNOWN)
    g = Graph("encoder")
    source, valid = g.input("source", int, ["B", "S"]), g.input("valid", bool, ["B", "S"])
    place = g.counted(g.constant(0), g.size(source, 1))
    run = Operations(g, place, place, g.unsqueeze(valid, 1, 2), {"valid": valid})
    x = run.stack(encoder.encoder, run.embedding(encoder.source, source))
    width, answers = encoder.config.width, encoder.sizes.target
    g.output(x, "vectors", float, ["B", "S", width])
    shape: list[int | str] = ["B", "S"]
    if encoder.config.pool != "none":
        x, shape = _pooled(g, encoder, x, valid), ["B"]
    if (transform := encoder.transform) is not None:
        x = run.function(transform.function, run.linear(transform.inner, x))
        x = x if transform.norm is None else run.norm(transform.norm, x)
    if encoder.config.pool != "none":
        g.output(x, "pooled", float, ["B", width])
    if answers:
        logits = g("MatMul", x, g("Transpose", g.weight(encoder.head.weight_VD), perm=[1, 0]))
        assert encoder.head.bias_V is not None
        g.output(g("Add", logits, g.weight(encoder.head.bias_V)), "logits", float, [*shape, answers])
    return g


def _pooled(g: Graph, encoder: Encoder, x: str, valid: str) -> str:
    """Return the first position, or the mean over the real ones."""
    if encoder.config.pool == "first":
        return g("Gather", x, g.constant(0), axis=1)
    weight = g.unsqueeze(g("Cast", valid, to=FLOAT), 2)
    total = g("ReduceSum", g("Mul", x, weight), g.constant([1]), keepdims=0)
    return g("Div", total, g("ReduceSum", weight, g.constant([1]), keepdims=0))


def check_encoder(folder: Path, bundle: Bundle, texts: Sequence[str]) -> list[str]:
    """Raise FolderError if the folder computes other numbers than our model; else return a note on the agreement."""
    import onnxruntime

    model, codec = bundle.model, bundle.codec
    assert isinstance(model, Encoder)
    assert codec.source is not None
    most = model.longest_source or LONGEST
    room = max(1, min(most, LONGEST) - sum(map(len, codec.framing)))
    ids = [*random_rows(codec.source.size, room), *(row[:room] for row in codec.source.encode_batch(list(texts)))]
    rows, furthest = [framed(codec, row)[:most] for row in ids], 0.0
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession((folder / FILE).read_bytes(), options, ["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    for begin in range(0, len(rows), BATCH):
        source_BS, mask_BS = pad_right(rows[begin : begin + BATCH], torch.device("cpu"))
        mask_BS = torch.ones(source_BS.shape, dtype=torch.bool) if mask_BS is None else mask_BS
        found = dict(
            zip(names, session.run(None, {"source": source_BS.numpy(), "valid": mask_BS.numpy()}), strict=True)
        )
        for name, right in _expected(model, source_BS, mask_BS).items():
            gap = np.abs(found[name] - right)
            real = mask_BS.numpy() if gap.shape[:2] == tuple(mask_BS.shape) else slice(None)
            worst = float(gap[real].max(initial=0.0))
            furthest = max(furthest, worst if worst == worst else float("inf"))
    if furthest > CLOSE:
        raise FolderError(f"onnx: outputs differ from ours by {furthest:.2g}; nothing was written")
    return [f"checked on {len(rows)} texts in padded batches: {', '.join(names)} within {furthest:.1e}"]


def _expected(model: Encoder, source_BS: torch.Tensor, mask_BS: torch.Tensor) -> dict[str, Any]:
    with torch.inference_mode():
        found = {"vectors": model.encode(source_BS, mask_BS).x_BSD.numpy()}
        if model.config.pool != "none":
            found["pooled"] = model.pooled(source_BS, mask_BS).numpy()
        if model.sizes.target:
            found["logits"] = model.classify(source_BS, mask_BS).numpy()
    return found


def encoder_program(codec: Codec, longest: int | None) -> str:
    """Return the program of the README: a class, a name for each token, or a vector for each line."""
    before, behind = (list(side) for side in codec.framing)
    cut = "" if longest is None else f"[: {longest - len(before) - len(behind)}]"
    if not codec.classes:
        answer = """    vector = found["vectors"][0].mean(0)
    print(json.dumps((vector / np.linalg.norm(vector)).tolist()))
"""
    elif codec.per_position:
        answer = f"""    best = found["logits"][0].argmax(-1)[{len(before)} : given.shape[1] - {len(behind)}]
    print(*(classes[number] for number in best))
"""
    else:
        answer = """    print(classes[found["logits"][0].argmax()])
"""
    names = 'classes = json.load(open("codec.json", encoding="utf-8"))["classes"]\n' if codec.classes else ""
    return f"""import json
import sys

import numpy as np
import onnxruntime
{text_functions(codec, ids=True)}{names}encoder = onnxruntime.InferenceSession("encoder.onnx")
for line in sys.stdin:
    given = np.array([{before} + ids_of(line.rstrip("\\n")){cut} + {behind}])
    made = encoder.run(None, {{"source": given, "valid": np.ones(given.shape, bool)}})
    found = dict(zip([one.name for one in encoder.get_outputs()], made))
{answer}"""
