"""Tiny models with random weights, a server for them, and a client: helpers for the tests of the page."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn
from serve_folders import PATIENT

from allyouneed.config import parse
from allyouneed.folder import save_folder
from allyouneed.rasp.compiler import compile_file
from allyouneed.serve import ServeConfig, create_app, open_models
from allyouneed.training import Recipe
from allyouneed.training.budget import Spent
from allyouneed.training.card import model_card

SMALL = {"width": 16, "hidden": 16, "mixer": {"type": "softmax", "heads": 2}}
NUMBERS = {"type": "numbers", "up_to": 99, "pairs": 60, "valid": 10, "test": 20}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"type": "encoder-decoder", "encoder_layers": 2, "decoder_layers": 2, **SMALL},
    "bahdanau": {"type": "seq2seq", "attention": "bahdanau", "cell": "gru", "width": 12},
    "lstm": {"type": "seq2seq", "cell": "lstm", "width": 12},
}
LANGUAGE = {"type": "decoder", "layers": 2, "positions": "none", **SMALL}
PROGRAM = "flip = select(indices, length - indices - 1, ==);\nreverse = aggregate(flip, tokens);\n"


def save_random(folder: Path, task: dict[str, Any], model: dict[str, Any], about: str) -> Path:
    """Save the model folder of a recipe, with its initial weights."""
    recipe = parse(Recipe, {"about": about, "task": task, "model": model})
    torch.manual_seed(1)
    data = recipe.task.prepare(folder / "data", recipe.seed)
    built = recipe.model.build(data.sizes)
    card = model_card(recipe, built, Spent(), 0, [], [], [])
    return save_folder(folder / "model", built, data.codec, recipe, card)


def make_folders(folder: Path) -> list[str]:
    """Save model folders and return their paths: translators, a byte-level language model, a compiled program."""
    for name, model in MODELS.items():
        save_random(folder / name, NUMBERS, model, f"{name}, never trained")
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat, ähem. " * 40, encoding="utf-8")
    task = {"type": "language", "train": str(text), "split": [0.8, 0.2], "context": 16, "tokenizer": {"kind": "bytes"}}
    save_random(folder / "language", task, LANGUAGE, "<b>bytes</b>, never trained")
    (folder / "reverse.rasp").write_text(PROGRAM, encoding="utf-8")
    compile_file(str(folder / "reverse.rasp"), str(folder / "reverse"), "abcd", 8, verified=False)
    return [str(folder / name) for name in (*MODELS, "language", "reverse")]


def write_run(folder: Path, steps: int, *, end: bool = False) -> None:
    """Write the recipe and the log of a training run with this many steps."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text("[train]\nbudget = { steps = 1000 }\n", encoding="utf-8")
    with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
        for step in range(10, steps + 1, 10):
            spent = {"step": step, "tokens": 100 * step, "seconds": step / 10, "flops": 1e6 * step}
            log.write(json.dumps({"kind": "step", "loss": 3 / step**0.5, "norm": 1.0, **spent}) + "\n")
        log.write(json.dumps({"kind": "evaluation", "step": steps, "tokens": 100 * steps, "loss": 0.5}) + "\n")
        if end:
            log.write(json.dumps({"kind": "end", "step": steps, "loss": 0.5, "chosen": steps}) + "\n")


@contextmanager
def serving(folders: list[str], runs: Path, port: int = 0, **settings: Any) -> Iterator[str]:
    """Run a real server in a thread, and yield its address. Port 0: any free port."""
    config = ServeConfig(runs=str(runs), **{**PATIENT, **settings})
    app = create_app(config, open_models(folders))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def request(url: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    """Return the status and the JSON of a response. With a body, send a POST."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=300) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")
