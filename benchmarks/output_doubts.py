"""How often the warnings of `translate` name human translations: TSV files, or two files of lines.

python benchmarks/output_doubts.py val.en-de.tsv
python benchmarks/output_doubts.py train.en train.de
"""

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from allyouneed.text.corpus_settings import pairs
from allyouneed.text.output_checks import doubts_of


def main() -> None:
    """Print each pair that a warning names, and the counts."""
    counts, total = Counter[str](), 0
    for source, target in pairs(sys.argv[1:]):
        total += 1
        for doubt in doubts_of(source, target):
            counts[doubt] += 1
            print(doubt, source[:100], target[:100], sep="\t")
    print(f"{total:,} pairs", dict(counts))


if __name__ == "__main__":
    main()
