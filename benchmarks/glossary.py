"""Terms of a glossary in translations, and what they cost: share of terms, BLEU and time with and without.

    python benchmarks/glossary.py runs/m30k [--right 0.85] [--terms 200] [--lines 0] [--beam 5]

The glossary is made from the training pairs of the run: words of the source with their best translation t(y | x) of IBM
Model 1 (shortlist/lexicon.py), if the reference has it in the share `right` of the training lines with the source word.
Its terms are therefore right for most references of the test lines. The most frequent ones are kept.

`share` counts each term of each test line once: the output contains the target as a whole word.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from sacrebleu.metrics import BLEU

from allyouneed.decode import translate
from allyouneed.evaluation.settings import recipe_of, search_config
from allyouneed.pipeline import load
from allyouneed.shortlist.lexicon import learn_lexicon
from allyouneed.text.glossary import Constraint, Glossary
from allyouneed.text.lines import lines, resolve
from allyouneed.text.ragged import Ragged, RaggedWriter

WORD = re.compile(r"\w+")
RAREST = 20  # training lines with a source word


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return WORD.findall(text)


def numbered(texts: list[list[str]], folder: Path, name: str) -> tuple[Ragged, list[str]]:
    """Return words as ids from 1, and the words by id."""
    names = ["", *sorted({word for text in texts for word in text})]
    number = {name: place for place, name in enumerate(names)}
    with RaggedWriter(folder, name, "<u4") as writer:
        writer.extend([number[word] for word in text] for text in texts)
    return Ragged(folder, name, "<u4"), names


def make_glossary(sources: list[str], targets: list[str], right_share: float, most: int) -> dict[str, str]:
    """Return word pairs that are right for nearly all training lines, the most frequent first."""
    split = [words(text.lower()) for text in sources], [words(text) for text in targets]
    with tempfile.TemporaryDirectory() as folder:
        left, left_names = numbered(split[0], Path(folder), "source")
        right, right_names = numbered(split[1], Path(folder), "target")
        lexicon = learn_lexicon(left, right).best(1)
    best = {
        left_names[x]: right_names[y] for x, y in zip(lexicon.source.tolist(), lexicon.target.tolist(), strict=True)
    }
    seen, both = Counter[str](), Counter[str]()
    for source, target in zip(*split, strict=True):
        inside = set(target)
        for word in set(source):
            seen[word] += 1
            both[word] += best.get(word) in inside
    good = [word for word in seen if word and seen[word] >= RAREST and both[word] >= right_share * seen[word]]
    return {word: best[word] for word in sorted(good, key=lambda word: (-seen[word], word))[:most]}


def main() -> None:
    """Translate the test lines twice and print the numbers as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--right", type=float, default=0.85)
    parser.add_argument("--terms", type=int, default=200)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--beam", type=int, default=5)
    options = parser.parse_args()
    bundle = load(options.run)
    task = recipe_of(bundle).task.model_dump()
    train, test = ([list(lines(resolve(name))) for name in task[side]] for side in ("train", "test"))
    pairs = make_glossary(*train, options.right, options.terms)
    glossary = Glossary(pairs.items())
    sources, references = (side[: options.lines or None] for side in test)
    constraints = [Constraint(glossary.phrases(text)) for text in sources]
    config = search_config(bundle, {"beam": options.beam})
    result: dict[str, object] = {
        "lines": len(sources),
        "lines with terms": sum(bool(one.phrases) for one in constraints),
        "terms": len(pairs),
        "share in references": share(references, constraints),
    }
    for name, given in (("without", None), ("with", constraints)):
        before = time.perf_counter(), time.process_time()
        found = [ranked[0].text for ranked in translate(bundle.model, bundle.codec, sources, config, constraints=given)]
        seconds = time.perf_counter() - before[0], time.process_time() - before[1]
        result[name] = {
            "share": share(found, constraints),
            "bleu": round(BLEU().corpus_score(found, [references]).score, 2),
            "seconds": round(seconds[0], 1),
            "cpu seconds": round(seconds[1], 1),
        }
    print(json.dumps(result, indent=1))
    print(", ".join(f"{source} {target}" for source, target in list(pairs.items())[:20]), file=sys.stderr)


def share(outputs: list[str], constraints: list[Constraint]) -> float:
    """Return the share of the required phrases that outputs contain."""
    found = [
        phrase.occurs_in(output) for output, one in zip(outputs, constraints, strict=True) for phrase in one.phrases
    ]
    return round(sum(found) / max(1, len(found)), 4)


if __name__ == "__main__":
    main()
