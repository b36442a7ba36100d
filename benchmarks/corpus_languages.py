"""How well swapped and wrong languages are found, on real pairs: Multi30k, Debian descriptions, Tatoeba.

    python benchmarks/corpus_languages.py --data ../shared/data/translation

The tables are learned from 20,000 pairs, of which 5 % are swapped. The other pairs are judged as they are (false
alarms), with both sides swapped, with the source as its own target, and with texts of other languages (UDHR) as target.
"""

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from allyouneed.corpus.languages import SideLanguages
from allyouneed.text.corpora import PairCorpus
from allyouneed.text.fingerprints import Grams
from allyouneed.text.lines import lines

LEARNED, SWAPPED = 20_000, 1_000
Rows = list[tuple[str, ...]]


def corpora(data: Path) -> dict[str, PairCorpus]:
    """Return the corpora by name."""
    multi30k = (str(data / "multi30k/train.en"), str(data / "multi30k/train.de"))
    debian = (str(data / "debian_descriptions/train.en-de.tsv"),)
    return {
        "multi30k": PairCorpus(files=multi30k),
        "debian": PairCorpus(files=debian, source=3, target=4),
        "tatoeba": PairCorpus(files=(str(data / "tatoeba/tatoeba_short.en-de.tsv"),)),
    }


def others(data: Path) -> dict[str, list[str]]:
    """Return clauses of other languages, and German ones of another domain."""
    table = [line.split("\t") for line in lines(data / "udhr/udhr_11_languages.tsv")]
    columns = {name: table[0].index(name) for name in ("fra", "spa", "ces", "deu_1996")}
    return {
        name: [part.strip() for row in table[1:] for part in row[place].split(",") if len(part) > 20]
        for name, place in columns.items()
    }


def shares(known: SideLanguages, sources: list[str], targets: list[str]) -> dict[str, float]:
    """Return the share of pairs with each defect."""
    found = Counter(known.defects([Grams.of(sources), Grams.of(targets)]))
    return {kind: round(count / len(sources), 5) for kind, count in sorted(found.items(), key=str) if kind}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/translation"))
    data = parser.parse_args().data
    for name, corpus in corpora(data).items():
        rows: Rows = list(corpus.rows())
        random.Random(3).shuffle(rows)
        learned = [row[::-1] for row in rows[:SWAPPED]] + rows[SWAPPED:LEARNED]
        known = SideLanguages.learn([[row[side] for row in learned] for side in (0, 1)])
        sources, targets = ([row[side] for row in rows[LEARNED:]] for side in (0, 1))
        result = {
            "corpus": name,
            "pairs": len(sources),
            "as they are": shares(known, sources, targets),
            "swapped": shares(known, targets, sources),
            "source as target": shares(known, sources, sources),
            **{other: shares(known, sources[: len(texts)], texts) for other, texts in others(data).items()},
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
