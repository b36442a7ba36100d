"""Speed and memory of a language model of SmolLM2-135M's shape, batch 1: ours, transformers, CTranslate2, llama.cpp.

    python benchmarks/language_speed.py [--threads 1,2] [--rounds 7] [--tokens 48] [--sides NAME,..]
                                        [--native LIBRARY] [--work FOLDER] [--json FILE]

The weights are random, in bfloat16 (SmolLM2's own are bfloat16, too). All sides get the same weights and the same
prompt and decode greedily; the sides that compute in float32 must give the same tokens. Each side is a process that
answers requests, all sides in turn in every round. A ratio is that of one round: the time of a peer over ours. Memory
is the peak of a side's process, whole and without what its imports took.

    ours             the bfloat16 of the file, computed in float32
    ours int8        the folder of `allyouneed export --to int8`
    ctranslate2      float32; ctranslate2 int8
    transformers     float32; transformers bfloat16
    llama.cpp        float32; llama.cpp bfloat16; llama.cpp q8_0

llama.cpp is the package xllamacpp, a wheel for AVX2, and gguf writes its files: `pip install --no-deps` of both, in the
versions of the `peers` extra. With `--native libllama.so` there are three sides more, `native llama.cpp`: a library
that is compiled for this processor. This is how, in some minutes, with the source package of llama-cpp-python 0.3.36:

    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
          -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_COMMON=OFF
    cmake --build build --target llama            # build/bin/libllama.so
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_engine

WORDS, WIDTH, HIDDEN, LAYERS, HEADS, KEY_HEADS = 49152, 576, 1536, 30, 9, 3
PROMPT = [7, 2008, 977, 30001, 12, 555]  # their ids
SIDES = ("ours", "ctranslate2", "transformers", "transformers bfloat16", "ours int8", "ctranslate2 int8")
LLAMA, NATIVE = "llama.cpp", "native llama.cpp"
EXACT = ("ours", "ctranslate2", "transformers", LLAMA, NATIVE)
BYTES = ("int8", "q8_0")  # the ends of names of sides in int8
Generate = Callable[[int], list[int]]  # number of tokens -> tokens, as theirs


def prepare(work: Path) -> None:
    """Write the model for all sides."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    from allyouneed.folder import load_folder
    from allyouneed.interop.ctranslate2.files import write_model
    from allyouneed.interop.hf.load import import_folder, read_folder
    from allyouneed.interop.int8 import export_folder

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        max_position_embeddings=8192,
        rope_theta=100000.0,
        initializer_range=0.05,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(work / "theirs")
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(3, WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(work / "theirs" / "tokenizer.json"))
    import_folder(work / "theirs", work / "ours")
    (work / "ids.json").write_text(json.dumps(read_folder(work / "theirs").vocabulary.rows.theirs))
    bundle = load_folder(work / "ours")
    export_folder(bundle, work / "ours int8")
    for quantization in ("float32", "int8"):
        (work / f"ctranslate2 {quantization}").mkdir()
        write_model(bundle.model, bundle.codec, work / f"ctranslate2 {quantization}", quantization)
    if importlib.util.find_spec("gguf"):
        for weights in llama_engine.FORMATS:
            llama_engine.write_gguf(work / "theirs", work / f"{weights}.gguf", weights)


def ours(work: Path, int8: bool, threads: int) -> tuple[Callable[[], Generate], float]:
    """Return our engine."""
    import torch

    import allyouneed
    import allyouneed.pipeline
    from allyouneed import kernels
    from allyouneed.decode import SampleConfig, sample
    from allyouneed.malloc import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    kernels.usable(torch.empty(0))  # compiled, if this is the first time

    def load() -> Generate:
        theirs = json.loads((work / "ids.json").read_text())
        number = {token: ours for ours, token in reversed(list(enumerate(theirs)))}
        pipeline = allyouneed.load(work / ("ours int8" if int8 else "ours"))
        prompt = [number[token] for token in PROMPT]

        def generate(tokens: int) -> list[int]:
            found = sample(
                pipeline.model, [prompt[1:]], SampleConfig(temperature=0, max_length=tokens), begin=prompt[0]
            )
            return [theirs[token] for token in found[0][0].ids]

        return generate

    return load, memory("VmRSS")


def ctranslate2(work: Path, quantization: str, threads: int) -> tuple[Callable[[], Generate], float]:
    """Return CTranslate2. It is imported without torch."""
    import ctranslate2

    def load() -> Generate:
        theirs = json.loads((work / "ids.json").read_text())
        number = {token: ours for ours, token in reversed(list(enumerate(theirs)))}
        folder = work / f"ctranslate2 {quantization}"
        names: Any = json.loads((folder / "vocabulary.json").read_text())
        place = {name: ours for ours, name in enumerate(names)}
        engine = ctranslate2.Generator(str(folder), compute_type=quantization, inter_threads=1, intra_threads=threads)
        prompt = [[names[number[token]] for token in PROMPT]]

        def generate(tokens: int) -> list[int]:
            limits = {"max_length": tokens, "min_length": tokens, "include_prompt_in_result": False}
            found = engine.generate_batch(prompt, beam_size=1, suppress_sequences=[[names[0]], [names[1]]], **limits)
            return [theirs[place[word]] for word in found[0].sequences[0]]

        return generate

    return load, memory("VmRSS")


def transformers(work: Path, dtype: str, threads: int) -> tuple[Callable[[], Generate], float]:
    """Return transformers."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.models.llama import modeling_llama  # noqa: F401  imported late otherwise

    torch.set_num_threads(threads)

    def load() -> Generate:
        model = AutoModelForCausalLM.from_pretrained(work / "theirs", dtype=getattr(torch, dtype)).eval()
        ids_1T = torch.tensor([PROMPT])

        def generate(tokens: int) -> list[int]:
            settings = GenerationConfig(
                max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=2
            )
            with torch.inference_mode():
                out = model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), generation_config=settings)
            return out[0, len(PROMPT) :].tolist()

        return generate

    return load, memory("VmRSS")


def llama_cpp(library: Path, work: Path, weights: str, threads: int) -> tuple[Callable[[], Generate], float]:
    """Return llama.cpp. It is imported without torch."""
    opened = llama_engine.open_library(library)

    def load() -> Generate:
        return llama_engine.load(opened, work / f"{weights}.gguf", PROMPT, threads, WORDS)

    return load, memory("VmRSS")


def memory(what: str) -> float:
    """Return a number of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def serve(name: str, work: Path, threads: int, native: Path | None) -> None:
    """Answer requests: a number of tokens -> the tokens, seconds, MiB of the imports and MiB at the peak."""
    before, _, weights = name.rpartition("llama.cpp")
    engine, _, precision = name.partition(" ")
    if engine == "ours":
        load, imports = ours(work, precision == "int8", threads)
    elif name != weights:
        library = native if before else llama_engine.find_library()
        assert library is not None
        load, imports = llama_cpp(library, work, weights.strip() or "float32", threads)
    else:
        make = ctranslate2 if engine == "ctranslate2" else transformers
        load, imports = make(work, precision or "float32", threads)
    generate = load()
    for line in sys.stdin:
        begin = time.perf_counter()
        tokens = generate(int(line))
        print(json.dumps([tokens, time.perf_counter() - begin, imports, memory("VmHWM")]), flush=True)


class Side:
    """The process of an engine."""

    def __init__(self, name: str, work: Path, threads: int, native: Path | None) -> None:
        self.name, self.times, self.memory = name, [], (0.0, 0.0)  # type: str, list[float], tuple[float, float]
        command = [sys.executable, __file__, "--side", name, "--work", str(work), "--threads", str(threads)]
        command += ["--native", str(native)] if native else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, tokens: int) -> tuple[list[int], float]:
        """Return the tokens and the seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(tokens, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name}: failed; see its error above")
        found, seconds, imports, peak = json.loads(answer)
        self.memory = peak, peak - imports
        return found, seconds

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def available(work: Path, native: Path | None) -> list[str]:
    """Return the names of all sides that can run, and state what cannot."""
    names = [*SIDES]
    if not (work / f"{llama_engine.FORMATS[0]}.gguf").exists():
        print("note: without llama.cpp: gguf, which writes its files, is not installed (or was not, for this --work)")
        return names
    for engine, library in ((LLAMA, llama_engine.find_library()), (NATIVE, native)):
        if library is not None:
            names += [f"{engine} {weights}".removesuffix(" float32") for weights in llama_engine.FORMATS]
        elif engine == LLAMA:
            print("note: without the wheel of llama.cpp: xllamacpp is not installed")
    return names


def compare(names: list[str], work: Path, threads: int, given: argparse.Namespace) -> dict[str, Any]:
    """Measure sides with this many threads, print the result and return it."""
    sides = [Side(name, work, threads, given.native) for name in names]
    said = {side.name: side.ask(given.tokens)[0] for side in sides}  # also warms up
    for name in EXACT:
        if "ours" in said and name in said and said[name] != said["ours"]:
            print(f"note: {name} gives other tokens than ours: {said[name][:8]} instead of {said['ours'][:8]}")
    for _ in range(given.rounds):
        for side in sides:
            side.times.append(side.ask(given.tokens)[1] / given.tokens * 1000)
    found: dict[str, Any] = {}
    print(f"\n{threads} thread{'s' * (threads > 1)}: ms a token, median (range) of {given.rounds} rounds; peak MiB")
    for side in sides:
        side.close()
        peak, own = side.memory
        found[side.name] = {"ms": side.times, "peak": peak, "own": own, "tokens": said[side.name] == said.get("ours")}
        print(f"  {side.name:26} {spread(side.times)}   {peak:6.0f}, without imports {own:6.0f}")
    for own_side in {"ours", "ours int8"} & found.keys():
        print_ratios(own_side, found)
    return found


def print_ratios(own_side: str, found: dict[str, Any]) -> None:
    """Print how much faster our side is than each peer, and its memory beside CTranslate2's."""
    ours, peers = found[own_side], [name for name in found if name.endswith(BYTES) == own_side.endswith(BYTES)]
    for peer in sorted(set(peers) - {own_side}, key=lambda peer: statistics.median(found[peer]["ms"])):
        ratios = [theirs / our for theirs, our in zip(found[peer]["ms"], ours["ms"], strict=True)]
        found[peer]["ratios"] = ratios
        size = ours["own"] / found[peer]["own"]
        print(f"  {own_side}: {spread(ratios)} times as fast as {peer}, {size:.2f} times its memory")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):7.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--sides", help="some sides, separated by commas")
    parser.add_argument("--native", type=Path, help="libllama.so, compiled for this processor")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side")
    given = parser.parse_args()
    if given.side == "prepare":
        prepare(given.work)
        return
    if given.side:
        serve(given.side, given.work, int(given.threads), given.native)
        return
    with tempfile.TemporaryDirectory() as folder:
        work: Path = given.work or Path(folder)
        if not (work / "ids.json").exists():
            command = [sys.executable, __file__, "--side", "prepare", "--work", str(work)]
            subprocess.run(command, check=True)
        names = given.sides.split(",") if given.sides else available(work, given.native)
        found = {threads: compare(names, work, int(threads), given) for threads in given.threads.split(",")}
        if given.json:
            given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
