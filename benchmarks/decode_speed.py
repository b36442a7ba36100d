"""Compare decoding speed with CTranslate2 and Hugging Face `generate`, with the same weights and outputs.

    python benchmarks/decode_speed.py [--repeats 5] [--threads 1] [--sides "ours,ctranslate2"] [--beams 1,5]
        [--batches 1,32,64] [--shortlist] [--words 8000]
    python benchmarks/decode_speed.py --model RUN --source FILE [--reference FILE] [--sentences 1000] [--student RUN]
        [--shortlist]

Without a model: a random 3+3-layer Transformer (width 256, hidden 1024, 4 heads, tied 8,000-token vocabulary,
post-norm, ReLU). Before anything is timed, all float32 engines must generate the same outputs:

- fixed length: a bias prevents EOS, so that all engines take every step (this case is timed);
- natural ends: EOS competes, without length penalty, a case that all searches define alike.

With a model: the sentences of a file, longest first, in batches. All float32 engines must generate the same outputs;
BLEU is printed if references are given. A student is another model that translates the same sentences, in int8.

With --shortlist our engine and the student also search among the words of their shortlists (random for random weights).

Each engine is a process (decode_sides.py). They alternate, so that load on the machine affects all of them. Ratios use
CPU time; wall time is printed too. A ratio is the time of another engine over ours: above 1 ours is faster.
"""

import argparse
import random
import statistics
from pathlib import Path
from typing import Any

from decode_sides import EXACT, LISTED, NEVER, SIDES, VOCABULARY, Ids, Request, Side, Weights, shortlist_of

from allyouneed.text.specials import EOS

LONGEST = 24
STUDENT = "student int8"
BEYOND = 100  # target limit for a trained model, more than it ever needs
Run = list[tuple[float, float]]  # CPU and wall seconds of each engine


def some_sources(count: int, words: int, seed: int = 0) -> Ids:
    numbers = random.Random(seed)
    return [[numbers.randrange(4, words) for _ in range(numbers.randrange(8, 24))] + [EOS] for _ in range(count)]


def check_same(sides: list[Side], request: Request) -> dict[str, Ids]:
    """Return the outputs of each engine; exit if those of float32 engines differ."""
    outputs = {side.name: side.decode(request)[0] for side in sides}
    exact = [name for name in outputs if name in EXACT]
    for name in exact[1:]:
        for number, (one, two) in enumerate(zip(outputs[exact[0]], outputs[name], strict=True)):
            if one != two:
                case = f"beam {request.beam}, batches of {len(request.batches[0])}, {request.weights}"
                raise SystemExit(f"{case}: sentence {number} differs:\n{exact[0]:16} {one}\n{name:16} {two}")
    return outputs


def compare_random(sides: list[Side], beams: list[int], batches: list[int], options: argparse.Namespace) -> None:
    words = options.words
    for bias in (0.0, 6.0, 12.0, NEVER):
        for beam in beams:
            for batch in batches:
                check_same(sides, Request(Weights(None, bias, words), [some_sources(batch, words)], beam, LONGEST))
    for beam in beams:
        for batch in batches:
            again = 16 if batch == 1 else 1
            request = Request(Weights(None, NEVER, words), [some_sources(batch, words)], beam, LONGEST, again)
            runs = [[side.decode(request)[1] for side in sides] for _ in range(options.repeats)]
            report(f"beam {beam} batch {batch}", again * batch * LONGEST, again * batch, sides, runs)
            if options.shortlist:
                print(f"    {listed_words(request, words)}", flush=True)


def compare_trained(sides: list[Side], beams: list[int], batches: list[int], options: argparse.Namespace) -> None:
    from allyouneed.folder import load_folder

    codec = load_folder(options.model).codec
    texts = _lines(options.source)[: options.sentences]
    references = _lines(options.reference)[: options.sentences] if options.reference else []
    ids = codec.encode_sources(texts)
    students = [Side("ours int8", options.threads, STUDENT)] if options.student else []
    if students and options.shortlist:
        students.append(Side(f"ours int8{LISTED}", options.threads, STUDENT + LISTED))
    if students:
        taught = load_folder(options.student).codec
        own = taught.encode_sources(texts)
    order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
    for beam in beams:
        for batch in batches:
            # Batches of one take longest: a sample of about 128 sentences is enough.
            chosen = order[:: max(1, len(order) // 128)] if batch == 1 else order
            parts = [[ids[number] for number in chosen[at : at + batch]] for at in range(0, len(chosen), batch)]
            request = Request(Weights(options.model), parts, beam, BEYOND)
            outputs = check_same(sides, request)
            requests = [(side, request) for side in sides]
            for student in students:
                parts = [[own[number] for number in chosen[at : at + batch]] for at in range(0, len(chosen), batch)]
                requests.append((student, Request(Weights(options.student), parts, beam, BEYOND)))
                outputs[student.name] = student.decode(requests[-1][1])[0]
            runs = [[side.decode(one)[1] for side, one in requests] for _ in range(options.repeats)]
            tokens = sum(len(target) + 1 for target in outputs[sides[0].name])
            report(f"beam {beam} batch {batch}", tokens, len(chosen), [side for side, _ in requests], runs)
            for name, targets in outputs.items():
                decode = (taught if name.startswith(STUDENT) else codec).decode_target
                decoded, first = [decode(target) for target in targets], outputs[sides[0].name]
                same = sum(one == codec.decode_target(two) for one, two in zip(decoded, first, strict=True))
                line = f"    {name:22} {same} of {len(targets)} sentences equal to {sides[0].name}"
                if references and batch > 1:
                    line += "; " + bleu(decoded, [references[number] for number in chosen])
                print(line, flush=True)
            for name in [name for name in outputs if name.endswith(LISTED)]:
                side = next(one for side, one in requests if side.name == name)
                size = (taught if name.startswith(STUDENT) else codec).both()[1].size
                print(f"    {name}: {listed_words(side, size)}", flush=True)


def listed_words(request: Request, size: int) -> str:
    """Describe how many words single sources and batches allow."""
    shortlist = shortlist_of(request.weights)
    found = [shortlist.lists(batch) for batch in request.batches]
    alone = sum(int(count_N.sum()) for _, count_N in found) / sum(map(len, request.batches))
    together = sum(len(word_NL.unique()) for word_NL, _ in found) / len(found)
    return f"a source allows {alone:,.0f} of {size:,} words, a batch {together:,.0f}"


def is_marian(folder: str) -> bool:
    """Return True if peers.py can load the model's weights into Hugging Face's Marian."""
    from allyouneed.folder import load_folder

    model: Any = load_folder(folder).model
    config = model.config
    place = config.norm, config.positions.type, config.feedforward, config.tied, model.sizes.shared
    return place == ("post", "sinusoidal", "relu", True, True)


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")


def bleu(hypotheses: list[str], references: list[str]) -> str:
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    return f"BLEU {metric.corpus_score(hypotheses, [references]).score:.2f} {metric.get_signature()}"


def report(case: str, tokens: int, sentences: int, sides: list[Side], runs: list[Run]) -> None:
    """Print speeds, in tokens of the first engine's outputs, and ratios to ours and the student."""
    names = [side.name for side in sides]
    print(f"{case}: tokens per CPU-second; n={len(runs)}", flush=True)
    for place, name in enumerate(names):
        cpu = statistics.median(run[place][0] for run in runs)
        line = f"    {name:22} {tokens / cpu:8,.0f}  {sentences / cpu:7,.1f} sentences"
        for base in ("ours", "ours int8", STUDENT):
            if base in names and base != name:
                line += f"; over {base} {_ratio(runs, place, names.index(base))}"
        print(line, flush=True)


def _ratio(runs: list[Run], place: int, base: int) -> str:
    cpu, wall = (sorted(run[place][what] / run[base][what] for run in runs) for what in (0, 1))
    return f"{statistics.median(cpu):.2f} ({cpu[0]:.2f}-{cpu[-1]:.2f}), wall {statistics.median(wall):.2f}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=5, help="timed rounds (default: %(default)s)")
    arguments.add_argument("--threads", type=int, default=1, help="threads per engine (default: %(default)s)")
    arguments.add_argument("--sides", default=",".join(SIDES), help="comma-separated engines (default: %(default)s)")
    arguments.add_argument("--beams", default="1,5", help="beam sizes (default: %(default)s)")
    arguments.add_argument("--batches", default="1,32,64", help="batch sizes (default: %(default)s)")
    arguments.add_argument("--model", help="model or run folder (default: random weights)")
    arguments.add_argument("--source", help="file of source sentences for the model, one per line")
    arguments.add_argument("--reference", help="file of reference translations, for BLEU")
    arguments.add_argument("--sentences", type=int, default=1000, help="sentences to use (default: %(default)s)")
    arguments.add_argument("--shortlist", action="store_true", help="also run ours and the student with shortlists")
    arguments.add_argument("--words", type=int, default=VOCABULARY, help="vocabulary of random weights")
    arguments.add_argument("--student", help="another model or run folder, compared with the model")
    options = arguments.parse_args()
    names = [name.strip() for name in options.sides.split(",")]
    if unknown := [name for name in names if name not in SIDES]:
        raise SystemExit(f"--sides: unknown engine {unknown[0]!r}; known: {', '.join(SIDES)}")
    if options.model and any(name.startswith("generate") for name in names) and not is_marian(options.model):
        print("generate: skipped; Marian needs post-norm, ReLU, tied embeddings and sinusoidal positions")
        names = [name for name in names if not name.startswith("generate")]
    if options.shortlist:
        names += [name + LISTED for name in names if name.startswith("ours")]
    sides = [Side(name, options.threads) for name in names]
    beams, batches = ([int(number) for number in text.split(",")] for text in (options.beams, options.batches))
    if options.model:
        compare_trained(sides, beams, batches, options)
    else:
        compare_random(sides, beams, batches, options)


if __name__ == "__main__":
    main()
