"""Import, tune, export and import again for every architecture, with the commands that a user calls.

    python tests/faults/round_trips.py [ARCHITECTURE ...] [--json FILE] [--keep FOLDER]

For each architecture: a small random folder with a real tokenizer, written by transformers; `allyouneed import`;
`allyouneed train --from` with all weights and with LoRA; `allyouneed export --to hf | ctranslate2 | onnx`. Then

    loss      the held-out loss before the first step is transformers' loss of the original folder on the same labels
    hf        transformers loads the exported model and tokenizer: logits within 1e-5, the same greedy and beam search,
              every field of config.json and every file of the tokenizer as in the original
    back      the exported folder is imported again: the same weights bit by bit, the same ids
    ct2, onnx the engine's greedy search (and beam search of CTranslate2) gives the same text

Prints a row for each architecture: ok, "-" (there is nothing to do), or a footnote with the reason of a refusal. Ends
with status 1 and the list of faults if a step failed in another way. Takes about ten minutes.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

import hf_folders as their
import torch
import transformers
from engine_models import program
from trip_cases import Maker, cases, tokenizer_of
from trip_table import table

from allyouneed.cli import run
from allyouneed.folder import Bundle, load_folder
from allyouneed.interop.ctranslate2.check import CTranslate2Model
from allyouneed.pipeline import Pipeline, load
from allyouneed.text.specials import BOS
from allyouneed.training.log import read_log
from allyouneed.weights import model_tensors

STEPS = ("import", "loss", "full", "lora", "hf", "back", "ct2", "onnx")
CLOSE, BEAM, NEW = 1e-5, 4, 10
PAIRS = [("the cat ran", "a dog sat"), ("a tree", "the mat"), ("number 42 is fine", "it is number 41"), ("it", "a")]
HELD_OUT = "the cat ran after the dog"  # one window
LABELS = ("bad", "so-so", "good")


class Refusal(Exception):
    """A command that ended with one line of reason."""


class Trip:
    """One architecture on its way."""

    def __init__(self, make: Maker, folder: Path) -> None:
        torch.manual_seed(7)
        self.folder = folder
        self.theirs, original = make(folder / "theirs")
        self.original: Any = original.float().eval()
        kind = self.original.config
        self.paired, self.encoder = kind.is_encoder_decoder, not (kind.is_encoder_decoder or _writes(self.original))
        self._name_specials()
        self.tokenizer: Any = tokenizer_of(self.theirs)
        self.tagged = kind.model_type == "m2m_100"
        self.languages = {"source_language": "eng_Latn", "target_language": "deu_Latn"} if self.tagged else {}

    def _name_specials(self) -> None:
        """Write tokenizer_config.json, as folders have it, if there is none."""
        path, tokenizer = self.theirs / "tokenizer_config.json", self.theirs / "tokenizer.json"
        if path.exists() or not tokenizer.exists():
            return
        names = {one["id"]: one["content"] for one in json.loads(tokenizer.read_text())["added_tokens"]}
        config = self.original.config
        parts = {part: getattr(config, f"{part}_token_id", None) for part in ("pad", "bos", "eos")}
        roles = {f"{part}_token": names[number] for part, number in parts.items() if number in names}
        path.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **roles}))

    def command(self, *arguments: object) -> str:
        """Run a command of allyouneed; return what it wrote. Raise Refusal with its last line if it failed."""
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
            status = run([str(one) for one in arguments])
        said = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
        if status:
            assert "Traceback" not in said, said
            raise Refusal(said.strip().splitlines()[-1].replace(f"{self.folder}/", ""))
        return said

    def step(self, name: str) -> None:
        """Do one step of the trip."""
        getattr(self, f"step_{name}")()

    def step_import(self) -> None:
        self.command("import", self.theirs, "--out", self.folder / "ours")

    # --- tuning ---

    def step_full(self) -> None:
        self._tune("full")

    def step_lora(self) -> None:
        self._tune("lora", "--set", "train.lora.rank=2")

    def _tune(self, out: str, *more: str) -> None:
        settings = ["--steps", "3", "--set", "train.evaluate_every=0.34", "--set", "train.optimizer.lr=0.002"]
        settings += ["--set", "train.average=none"]
        start, run_folder = self.folder / "ours", self.folder / out
        self.command("train", "--from", start, *self._data(), *settings, *more, "--out", run_folder)
        old, new = (model_tensors(load_folder(self.folder / name).model) for name in ("ours", out))
        assert any(name not in old or not torch.equal(tensor, old[name]) for name, tensor in new.items()), "not trained"

    def _data(self) -> list[object]:
        if self.encoder:
            file = self.folder / "labels.tsv"
            lines = [f"{label}\tthe cat {label} {n}\n" for n in range(4) for label in LABELS]
            file.write_text("".join(lines))
            return ["--task", "classification", "--train", file, "--valid", file]
        if self.paired:
            files = [self.folder / "pairs.en", self.folder / "pairs.de"]
            for side, file in enumerate(files):
                file.write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
            tags = ["--set", 'task.tags=["eng_Latn", "deu_Latn"]'] if self.tagged else []
            return [*(part for split in ("--train", "--valid") for one in files for part in (split, one)), *tags]
        for name, text in (("train", " ".join(their.TEXTS)), ("valid", HELD_OUT)):
            (self.folder / f"{name}.txt").write_text(text)
        files = ["--train", self.folder / "train.txt", "--valid", self.folder / "valid.txt"]
        return [*files, "--set", "task.context=32", "--set", "task.batch=2"]

    def step_loss(self) -> None:
        """Compare the loss before the first step with transformers' own, on its own labels."""
        if self.encoder or not (self.folder / "full").exists():
            raise Refusal("-")
        records = read_log(self.folder / "full" / "log.jsonl")
        ours = next(float(record["loss"]) for record in records if record["kind"] == "evaluation")
        total, count = 0.0, 0
        for source, target in PAIRS if self.paired else [("", HELD_OUT)]:
            given = self._labelled(source, target)
            with torch.no_grad():
                loss = float(self.original(**given).loss)
            tokens = int((given["labels"] != -100).sum()) - (0 if self.paired else 1)
            total, count = total + loss * tokens, count + tokens
        assert abs(ours - total / count) < 1e-4, f"loss {ours:.5f}, transformers has {total / count:.5f}"

    def _labelled(self, source: str, target: str) -> dict[str, Any]:
        if not self.paired:
            ids = self.tokenizer(target, return_tensors="pt").input_ids
            return {"input_ids": ids, "labels": ids}
        if self.tagged:
            self.tokenizer.src_lang, self.tokenizer.tgt_lang = "eng_Latn", "deu_Latn"
        given = dict(self._inputs(source))
        labels = self.tokenizer(text_target=target, return_tensors="pt").input_ids
        if self.tagged:
            labels[0, 0] = self.tokenizer.convert_tokens_to_ids("deu_Latn")
        if labels[0, -1] != self.original.config.eos_token_id and not self.tokenizer(" ").input_ids:
            labels = torch.cat([labels, torch.tensor([[self.original.config.eos_token_id]])], 1)
        if self.original.config.model_type == "mbart":  # its labels end with the tag of the next text
            start = torch.tensor([[self.original.config.decoder_start_token_id]])
            given |= {"decoder_input_ids": torch.cat([start, labels[:, :-2]], 1)}
            labels = labels[:, :-1]
        return given | {"labels": labels}

    # --- Hugging Face ---

    def step_hf(self) -> None:
        for name in self._tuned():
            out = self.folder / f"hf-{name}"
            self.command("export", self.folder / name, "--to", "hf", "--out", out)
            self._same_files(out, name)
            config = json.loads((out / "config.json").read_text())
            theirs: Any = getattr(transformers, config["architectures"][0]).from_pretrained(out).eval()
            self._compare(load_folder(self.folder / name), theirs, tokenizer_of(out))
            self._search(load(self.folder / name), theirs)

    def _tuned(self) -> list[str]:
        return ["ours", *(name for name in ("full", "lora") if (self.folder / name / "model").exists())]

    def _same_files(self, out: Path, name: str) -> None:
        """Require the original's config, apart from a new head, and its tokenizer files byte by byte."""
        for file in self.theirs.iterdir():
            if file.suffix != ".safetensors" and file.name != "config.json":
                assert (out / file.name).read_bytes() == file.read_bytes(), f"{name}: {file.name} differs"
        old, new = (json.loads((folder / "config.json").read_text()) for folder in (self.theirs, out))
        free = {"transformers_version"} | ({"id2label", "label2id", "architectures"} if self._new_head(name) else set())
        free |= {"torch_dtype", "dtype"}
        changed = {key: (old.get(key), new.get(key)) for key in old if key not in free and old[key] != new.get(key)}
        assert not changed, f"{name}: config.json: {changed}"
        kinds = [folder.get("dtype") or folder.get("torch_dtype") for folder in (old, new)]
        assert kinds[0] == kinds[1], f"dtype {kinds}"

    def _new_head(self, name: str) -> bool:
        return self.encoder and name != "ours"

    def _ids(self, bundle: Bundle, rows: list[list[int]]) -> torch.Tensor:
        origin = bundle.codec.origin
        assert origin is not None
        return torch.tensor([[origin.theirs[number] for number in row] for row in rows])

    def _inputs(self, text: str) -> dict[str, torch.Tensor]:
        """Return the source of a text as transformers' tokenizer frames it."""
        found = self.tokenizer(text, return_tensors="pt")
        return {"input_ids": found.input_ids, "attention_mask": torch.ones_like(found.input_ids)}

    def _compare(self, bundle: Bundle, theirs: Any, tokenizer: Any) -> None:
        """Compare tokens and logits."""
        model, codec, origin = bundle.model, bundle.codec, bundle.codec.origin
        assert origin is not None
        seen: Any = model
        place = {token: ours for ours, token in enumerate(origin.theirs) if ours not in origin.hidden}
        order = [place[token] for token in range(origin.size)]
        for text in their.SENTENCES:
            row = codec.encode_prompt(text) if codec.source is None else codec.encode_source(text)
            ids = self._ids(bundle, [row])
            assert tokenizer(text).input_ids == ids[0].tolist(), f"tokens of {text!r}"
            with torch.no_grad():
                if self.encoder:
                    found = theirs(ids)
                    if codec.classes == ():
                        right = getattr(found, "pooler_output", found.last_hidden_state[:, 0])
                        ours = seen.pooled(torch.tensor([row]))
                    else:
                        right, ours = found.logits, seen.classify(torch.tensor([row]))
                        ours = ours[..., order] if ours.shape[-1] == len(origin.theirs) else ours
                elif self.paired:
                    target = [BOS, *codec.encode_target("a dog")[:-1]]
                    right = theirs(input_ids=ids, decoder_input_ids=self._ids(bundle, [target])).logits
                    ours = model.step(torch.tensor([target]), model.condition(torch.tensor([row])))[0][..., order]
                else:
                    right = theirs(ids).logits
                    ours = model.step(torch.tensor([row]), model.start())[0][..., order]
            gap = float((ours - right).abs().max())
            assert gap <= CLOSE * max(1.0, float(right.abs().max()) / 10), f"logits differ by {gap:.2g}"

    def _search(self, ours: Pipeline, theirs: Any) -> None:
        """Compare greedy and beam search with `generate`, by text."""
        if self.encoder:
            return
        config, config_type = theirs.generation_config, theirs.config.model_type
        never = {config.pad_token_id, config.decoder_start_token_id if self.paired else config.bos_token_id}
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "length_penalty": 0.0}
        settings |= {"bad_words_ids": [[n] for n in never - {config.eos_token_id, None}] or None}
        settings |= {"pad_token_id": config.pad_token_id or 0}
        for text in their.SENTENCES:
            for beam in (1, BEAM) if self.paired else (1,):
                given = self._inputs(text)
                if config_type == "reformer" and given["input_ids"].shape[1] + NEW > 24:
                    continue  # hashed there
                if self.paired and self.tagged:
                    settings["forced_bos_token_id"] = self.tokenizer.convert_tokens_to_ids("deu_Latn")
                row = theirs.generate(**given, num_beams=beam, **settings)[0].tolist()
                made = row[1:] if self.paired else row[given["input_ids"].shape[1] :]
                right = self.tokenizer.decode(made, skip_special_tokens=True)
                if self.paired:
                    rules: Any = {"beam": beam, "max_length": NEW - self.tagged, "length_penalty": 0.0}
                    (said,) = ours.translate([text], sentences="never", **rules, **self.languages)
                else:
                    said = ours.generate(text, temperature=0, max_length=NEW)
                assert said.split() == right.split(), f"beam {beam}: {said!r}, transformers has {right!r}"

    def step_back(self) -> None:
        """Import the export of the tuned model: the same bits."""
        names = [name for name in self._tuned() if (self.folder / f"hf-{name}").exists()]
        if not names:
            raise Refusal("-")
        for name in names:
            again = self.folder / f"back-{name}"
            self.command("import", self.folder / f"hf-{name}", "--out", again)
            one, two = load_folder(self.folder / name), load_folder(again)
            assert one.codec.same_ids_as(two.codec), f"{name}: other ids"
            old, new = model_tensors(one.model), model_tensors(two.model)
            assert old.keys() == new.keys()
            other = [key for key in old if not self._same(old[key], new[key])]
            assert not other, f"{name}: {', '.join(other[:4])}"

    def _same(self, one: torch.Tensor, two: torch.Tensor) -> bool:
        """Return whether tensors have the same bits; T5's queries are scaled, Gemma's norms shifted: one rounding."""
        rounded = self.original.config.model_type in ("t5", "gemma", "gemma2")
        return torch.allclose(one, two, rtol=2.4e-7, atol=1.2e-7) if rounded else torch.equal(one, two)

    # --- engines ---

    def step_ct2(self) -> None:
        name, out = self._tuned()[-1], self.folder / "ct2"
        self.command("export", self.folder / name, "--to", "ctranslate2", "--out", out)
        bundle, ours = load_folder(self.folder / name), load(self.folder / name)
        engine = CTranslate2Model(bundle.model, bundle.codec, out, "float32")
        for text in their.SENTENCES:
            row = bundle.codec.encode_source(text) if self.paired else bundle.codec.encode_prompt(text)
            (found,) = engine.greedy([row])
            assert bundle.codec.target is not None
            said = bundle.codec.decode_target(found[:NEW])
            if self.paired:
                (right,) = ours.translate([text], sentences="never", beam=1, max_length=NEW, length_penalty=0.0)
            else:
                right = ours.generate(text, temperature=0, max_length=NEW)
            assert said.split() == right.split(), f"{said!r}, ours {right!r}"
        if self.paired:
            rules: Any = {"beam": BEAM, "max_length": NEW, "length_penalty": 0.0, "sentences": "never"}
            words = [[engine.source[n] for n in bundle.codec.encode_source(text)] for text in their.SENTENCES]
            limits = {"max_decoding_length": NEW, "length_penalty": 0.0, "max_input_length": 0, "max_batch_size": 1}
            limits |= {"min_decoding_length": 0}
            never = [["< pad >"], ["< bos >"]]
            made = engine._engine.translate_batch(words, beam_size=BEAM, **limits, suppress_sequences=never)
            for one, right in zip(made, ours.translate(their.SENTENCES, **rules), strict=True):
                said = bundle.codec.decode_target([engine._number[word] for word in one.hypotheses[0]])
                assert said.split() == right.split(), f"beam: {said!r}, ours {right!r}"

    def step_onnx(self) -> None:
        name, out = self._tuned()[-1], self.folder / "onnx"
        self.command("export", self.folder / name, "--to", "onnx", "--out", out)
        ours, text = load(self.folder / name), their.SENTENCES[0]
        if self.encoder and not ours.codec.classes:
            vector = torch.tensor(json.loads(self._program(out, text)))
            torch.testing.assert_close(vector, ours.embed([text])[0].vector_D, rtol=0, atol=CLOSE)
            return
        said = self._program(out, text)
        if self.encoder:
            assert said.split() == ours.classify([text])[0].split()
            return
        taken = 0 if self.paired else len(ours.codec.encode_prompt(text)) - 1
        longest = min(100, (ours.model.longest or 200) - taken)
        if self.paired:
            (right,) = ours.translate([text], sentences="never", beam=1, max_length=longest, length_penalty=0.0)
        else:
            right = ours.generate(text, temperature=0, max_length=longest)
        assert said.split() == right.split(), f"{said!r}, ours {right!r}"

    def _program(self, out: Path, text: str) -> str:
        """Return what the program of an export's README prints."""
        command = [sys.executable, "-c", program(out)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=out, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _writes(model: Any) -> bool:
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel", "WithLMHead"))


def travel(name: str, make: Maker, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the result of each step, and faults."""
    found, faults = dict.fromkeys(STEPS, "-"), []
    folder.mkdir(parents=True)
    try:
        trip = Trip(make, folder)
    except Exception:
        return found, [f"{name}: cannot be made: {traceback.format_exc()}"]
    for step in ("import", "full", "lora", "loss", "hf", "back", "ct2", "onnx"):
        try:
            trip.step(step)
            found[step] = "ok"
        except Refusal as reason:
            found[step] = str(reason)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            found[step], where = "FAULT", f"{Path(place.filename).name}:{place.lineno}"
            faults.append(f"{name}: {step}: {type(error).__name__}: {error} ({where})")
        if step == "import" and found[step] != "ok":
            break
    return found, faults


def main() -> None:
    """Make all trips, or those whose names contain the given words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = {n: m for n, m in cases().items() if not given.names or any(w.lower() in n.lower() for w in given.names)}
    results, faults = {}, []
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, make) in enumerate(chosen.items()):
            results[name], more = travel(name, make, (given.keep or Path(temporary)) / f"{number:02}")
            faults += more
            print(f"{name}: {' '.join(f'{k}={v}' for k, v in results[name].items())}", *more, sep="\n  ", flush=True)
    print("", table(results, STEPS), "", *faults, sep="\n")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
