"""Tiny model folders with random weights, and a real server on a free port, for the tests of `allyouneed serve`."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn

from allyouneed.config import parse
from allyouneed.folder import save_folder
from allyouneed.models.decoder import Decoder
from allyouneed.rasp.compiler import compile_file
from allyouneed.serve import ServeConfig, Served, create_app, open_models
from allyouneed.serve.backend import Backend
from allyouneed.serve.server import uvicorn_config
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import TokenizerConfig, of_symbols, train
from allyouneed.training import Recipe

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß -"
NUMBERS = [
    "one two three four five six seven eight nine ten",
    "twenty thirty forty fifty sixty",
    "and hundred thousand",
]
SOFTMAX = {"mixer": {"type": "softmax", "heads": 2}, "width": 16, "hidden": 32, "norm": "pre", "dropout": 0.0}
# Models with different kinds of state: the same engine serves all of them.
TRANSLATORS: dict[str, dict[str, Any]] = {
    "numbers": {"type": "encoder-decoder", **SOFTMAX, "encoder_layers": 1, "decoder_layers": 2},
    "lstm": {"type": "seq2seq", "cell": "lstm", "width": 16, "attention": "bahdanau"},
    "bytenet": {"type": "bytenet", "width": 12, "dilations": [1, 2], "encoder_sets": 1, "decoder_sets": 1},
}

# Limits that no test reaches unless it sets them: on a busy machine everything takes longer.
PATIENT = {"deadline": 300.0, "arrival": 300.0}


def translator(
    folder: Path, name: str, target: str = "de", sharp: float = 3.0, kind: str = "characters", **decode: Any
) -> Path:
    """Save a model of the task `numbers` that outputs random letters. `kind`: of its source tokeniser."""
    torch.manual_seed(len(name))
    recipe = parse(
        Recipe,
        {
            "about": f"random {name}",
            "task": {"type": "numbers", "target": target},
            "model": TRANSLATORS[name],
            "decode": {"beam": 1, **decode},
        },
    )
    letters = of_symbols(LETTERS, "characters")
    source = letters if kind == "characters" else train(NUMBERS * 9, TokenizerConfig(kind=kind, size=300))
    model = recipe.model.build(Sizes(source.size, letters.size))
    with torch.no_grad():
        model.head.weight_VD.mul_(sharp)
    return save_folder(folder / f"{name}-{target}", model, Codec(source, letters), recipe, "# A card\n")


def captioner(folder: Path, sentences: int = 1, **decode: Any) -> Path:
    """Save a translator of English sentences that outputs random letters. `sentences`: of a training line."""
    torch.manual_seed(119)  # some of its translations end, others reach the maximum length
    task: dict[str, Any] = {"type": "translation", "train": ["t.en", "t.de"], "valid": ["v.en", "v.de"]}
    recipe = parse(Recipe, {"task": task, "model": TRANSLATORS["numbers"], "decode": {"beam": 1, **decode}})
    letters = of_symbols("ADTNYadeghimnorstuwy .!", "characters")
    model = recipe.model.build(Sizes(letters.size, letters.size))
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3.0 if weights.dim() > 1 else 1.0)
    return save_folder(folder / "captions", model, Codec(letters, letters, sentences=sentences), recipe, "")


def language_model(folder: Path, kind: str = "bpe", **model_settings: Any) -> Path:
    """Save a language model that outputs random tokens."""
    torch.manual_seed(2)
    tree = {
        "task": {"type": "language", "train": "t", "valid": "v"},
        "model": {"type": "decoder", **SOFTMAX, "layers": 2, **model_settings},
    }
    recipe = parse(Recipe, tree)
    texts = ["to be or not to be, that is the question: 'tis nobler — süß & naïve 🙂\n"] * 9
    tokens = train(texts, TokenizerConfig(kind=kind, size=300), sentences=False)
    model = recipe.model.build(Sizes(tokens.size, tokens.size))
    return save_folder(folder / "language", model, Codec(target=tokens), recipe, "")


def reverser(folder: Path) -> Path:
    """Save a compiled RASP program."""
    program = folder / "reverse.rasp"
    program.write_text("reverse = aggregate(select(indices, length - indices - 1, ==), tokens);\n")
    return compile_file(program, folder / "reverse", vocabulary="abcd", length=8)[1]


@contextlib.contextmanager
def running(
    folders: list[Path], send_buffer: int | None = None, models: dict[str, Served] | None = None, **settings: Any
) -> Iterator[tuple[str, Backend]]:
    """Run a server with two decode workers, and yield its address and its backend. `models`: instead of folders."""
    config = parse(ServeConfig, {"port": 0, **PATIENT, **settings})
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    app = create_app(config, models or open_models([str(folder) for folder in folders]))
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    server = uvicorn.Server(uvicorn_config(app, config))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.backend
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        torch.set_num_threads(threads)


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Delay every step of a decoder by this many seconds."""
    advance = Decoder.advance

    def slowly(self: Decoder, *args: Any) -> Any:
        time.sleep(seconds)
        return advance(self, *args)

    monkeypatch.setattr(Decoder, "advance", slowly)
