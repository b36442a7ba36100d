"""`allyouneed export --to onnx`: graphs that any ONNX runtime and `tokenizers` run without us.

Both engines have run and agreed (check.py) before the folder gets its name; one that disagrees is never there.
"""

from importlib.util import find_spec
from pathlib import Path

from allyouneed.decode import SearchConfig, search
from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.interop.check_inputs import LONGEST, NO_TEXTS, framed, random_rows, stage_name, task_texts
from allyouneed.interop.export_notes import shortlist_note
from allyouneed.interop.onnx.check import Prompt, check_folder
from allyouneed.interop.onnx.encoder import FILE as ENCODER
from allyouneed.interop.onnx.encoder import check_encoder, encoder_graph, encoder_program
from allyouneed.interop.onnx.transformer import graphs_of
from allyouneed.interop.output_folder import require_safe_output
from allyouneed.interop.progress import ReportProgress, no_progress
from allyouneed.interop.text_program import library_of, text_functions, write_spm_files
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder import Encoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.storage import new_folder
from allyouneed.text.specials import BOS, EOS
from allyouneed.version import __version__

CARD = "README.md"


def export_folder(bundle: Bundle, out: Path, report: ReportProgress = no_progress) -> list[str]:
    """Write the folder and return notes for the user."""
    require_safe_output(out, bundle.path, "onnx")
    if missing := [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]:
        raise ConfigError(f"--to onnx needs {' and '.join(missing)}: pip install 'allyouneed[onnx]'")
    encodes = isinstance(bundle.model, Encoder) and bundle.codec.source is not None
    if not encodes and (bundle.codec.classes is not None or bundle.codec.target is None):
        raise ConfigError(
            f"onnx: a model of type {bundle.model.config.type} that outputs classes is not supported; an encoder is, "
            "and a model that outputs text"
        )
    graphs = {ENCODER: encoder_graph(bundle.model)} if encodes else graphs_of(bundle.model)
    with new_folder(out) as folder:
        for name, graph in graphs.items():
            (folder / name).write_bytes(graph.model().SerializeToString())
        texts = task_texts(bundle)
        report(0.0, stage_name(texts))
        if encodes:
            notes = check_encoder(folder, bundle, texts)
        else:
            notes = check_folder(folder, bundle.model, prompts_of(bundle, texts), report)
        notes += shortlist_note(bundle, "the graphs compute the logits of all words")
        bundle.codec.save(folder)
        write_spm_files(bundle.codec, folder)
        (folder / CARD).write_text(card(bundle), encoding="utf-8")
    return notes if texts else [*notes, NO_TEXTS]


def prompts_of(bundle: Bundle, texts: list[str]) -> list[Prompt]:
    """Return random sequences, and texts of the task with our model's outputs."""
    model, codec = bundle.model, bundle.codec
    assert isinstance(model, EncoderDecoder | Decoder)
    assert codec.target is not None
    most = (model.longest or LONGEST) // 2
    targets = random_rows(codec.target.size, most - 1, seed=1)
    if isinstance(model, Decoder):
        size = min(codec.target.size, codec.source.size) if codec.source is not None else codec.target.size
        real = (
            codec.encode_sources(texts) if codec.source is not None else [codec.encode_prompt(text) for text in texts]
        )
        rows = [[BOS, *row] for row in random_rows(size, most - 1)]
        return [(None, row[:most]) for row in [*rows, *real]]
    assert codec.source is not None
    sources = [framed(codec, row) for row in random_rows(codec.source.size, most - 1)]
    real = [framed(codec, row[: most - 1]) for row in codec.source.encode_batch(texts)]
    said = [found[0].ids for found in search(model, real, SearchConfig(beam=1, max_length=most - 1))]
    return [(source, [BOS, *row]) for source, row in zip([*sources, *real], [*targets, *said], strict=True)]


def card(bundle: Bundle) -> str:
    """Return README.md: a description, and a program that runs the model."""
    about = str(bundle.recipe.get("about", ""))
    start = f"""# A model for ONNX runtimes

{about}

Written by allyouneed {__version__}; `pip install onnxruntime {library_of(bundle.codec)} numpy` is all it needs. """
    if isinstance(bundle.model, Encoder):
        return f"""{start}Run
this in the folder: it prints an answer, or a normalised mean vector, for each line.

```python
{encoder_program(bundle.codec, bundle.model.longest_source)}```
"""
    return f"""{start}Its
state is explicit: pass the outputs `present_*` of `decoder.onnx` as `past_*` in the next step. Run this (greedy search)
in the folder:

```python
{_program(bundle)}```
"""


def _program_start(bundle: Bundle) -> tuple[str, str]:
    """Return the lines that read a text, and those that limit the output."""
    codec, paired, positions = bundle.codec, isinstance(bundle.model, EncoderDecoder), bundle.model.longest
    before, behind = (list(side) for side in codec.framing)
    ids = "ids_of(text)"
    text = " + ".join([*([str(before)] if before else []), ids, *([str(behind)] if behind else [])])
    check, limit = "", ""
    if positions is not None:  # the last token needs no position
        check = f"""    if {"given.shape[1]" if paired else "len(tokens)"} > {positions}:
        sys.exit("a text has more than {positions} tokens: this model has no more learned positions")
"""
        limit = f"    longest = min(longest, {positions + 1} - len(tokens))\n"
    if paired:
        start = f"""    given = np.array([{text}])
{check}    valid = np.ones(given.shape, bool)
    made = encoder.run(None, {{"source": given, "valid": valid}})
    state = {{"valid": valid, **dict(zip([one.name for one in encoder.get_outputs()], made))}}
    tokens = [{BOS}]
"""
    else:
        prompt = f"{text} + [{BOS}]" if codec.source is not None else f"[{BOS}] + {ids}"
        prompt = prompt if codec.source is not None or codec.bos else f"{ids} or [{BOS}]"
        start = f"    state, tokens = {{}}, {prompt}\n{check}"
    return start, limit


def _program(bundle: Bundle) -> str:
    """Return the program of the README: greedy search with onnxruntime."""
    codec, paired = bundle.codec, isinstance(bundle.model, EncoderDecoder)
    start, limit = _program_start(bundle)
    said = 'answer(line.rstrip("\\n"))'
    if codec.source is not None:
        said += ' if line.strip() else ""'
    encoder = 'encoder = onnxruntime.InferenceSession("encoder.onnx")\n' if paired else ""
    return f"""import sys

import numpy as np
import onnxruntime
{text_functions(codec, ids=True)}{encoder}decoder = onnxruntime.InferenceSession("decoder.onnx")


def answer(text, longest=100):
{start}{limit}    for one in decoder.get_inputs():
        if one.name.startswith("past_"):
            shape = [{{"B": 1, "P": 0}}.get(size, size) for size in one.shape]
            state[one.name] = np.zeros(shape, np.int64 if one.type == "tensor(int64)" else np.float32)
    said = []
    while len(said) < longest:
        logits, *present = decoder.run(None, {{"tokens": np.array([tokens]), **state}})
        names = [one.name.replace("present", "past") for one in decoder.get_outputs()[1:]]
        state |= dict(zip(names, present))
        token = int(logits[0, -1, {EOS}:].argmax()) + {EOS}  # never padding or begin-of-text
        if token in {[EOS, *codec.ends]}:
            break
        said.append(token)
        tokens = [token]
    return text_of(said)


for line in sys.stdin:
    print({said})
"""
