"""The second pass over a corpus: the defects of each row."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from allyouneed.corpus.encoding import encoding_defects
from allyouneed.corpus.kinds import KINDS, Rules
from allyouneed.corpus.lengths import is_unequal
from allyouneed.corpus.near_copies import HeldOut
from allyouneed.corpus.records import Chunk, chunks_of, place, shards_of
from allyouneed.corpus.scripts import is_other_script
from allyouneed.corpus.survey import Progress, Survey, survey, text_sides
from allyouneed.text.corpora import Corpus
from allyouneed.text.fingerprints import Grams, plain
from allyouneed.text.records import Row
from allyouneed.words import printable

EXAMPLES = 3  # of each kind
SHORTEST_COPY = 3  # words of a text that is not a name: it should not be its own translation
SHOWN = 120  # characters of an example


@dataclass
class Findings:
    """Counts and examples of defects."""

    rows: int = 0
    defective: int = 0  # rows with one defect or more
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    held_out: int = 0  # rows
    held_out_found: int = 0  # of them, with a near-copy in the corpus

    def add(self, where: str, row: Row, kinds: Sequence[str]) -> None:
        """Count a row with its defects."""
        self.rows += 1
        self.defective += bool(kinds)
        for kind in kinds:
            self.counts[kind] += 1
            known = self.examples.setdefault(kind, [])
            if len(known) < EXAMPLES:
                known.append(f"{where}: {' | '.join(printable(text[:SHOWN]) for text in row)}")


class Examination:
    """Both passes over corpora of one kind."""

    def __init__(self, corpora: Sequence[Corpus], held_out: Sequence[Corpus], rules: Rules, progress: Progress) -> None:
        self._corpora, self._rules, self._progress = corpora, rules, progress
        texts = (row[0] for _, shard in shards_of(held_out) for row in shard.rows() if row[0].strip())
        self._held_out = HeldOut(texts, rules.near) if held_out else None
        self.survey: Survey = survey(corpora, progress)
        self.findings = Findings()
        # An empty line of running text separates paragraphs.
        self._empty_lines = len(corpora[0].sides) == 1

    def chunks(self) -> Iterator[tuple[Corpus, Chunk, list[list[str]]]]:
        """Yield all rows in order, with the kinds of defects of each. `findings` has counts afterwards."""
        for corpus, shard in shards_of(self._corpora):
            for chunk in chunks_of(corpus, shard):
                kinds = self._defects(corpus, chunk.rows)
                for number, (row, found) in enumerate(zip(chunk.rows, kinds, strict=True), chunk.first):
                    self.findings.add(place(shard, number), row, found)
                yield corpus, chunk, kinds
                read = self.findings.rows
                self._progress(read / self.survey.rows, f"checking: {read:,} of {self.survey.rows:,} rows")
        if self._held_out is not None:
            self.findings.held_out, self.findings.held_out_found = len(self._held_out), int(self._held_out.found.sum())

    def _defects(self, corpus: Corpus, rows: Sequence[Row]) -> list[list[str]]:
        sides, repeat = text_sides(corpus), self.survey.repeats.is_repeat(rows)
        grams = [Grams.of([row[side] for row in rows]) for side in range(sides)]
        languages = self.survey.languages.defects(grams)
        firsts = [row[0] for row in rows]
        near = self._held_out.is_near(firsts, grams[0]) if self._held_out is not None else [False] * len(rows)
        found = []
        for number, row in enumerate(rows):
            if not all(map(str.strip, row)):
                found.append([] if self._empty_lines else ["empty"])
                continue
            kinds = {"duplicate"} if repeat[number] else set[str]()
            kinds |= {"held-out"} if near[number] else set[str]()
            kinds |= self._row_defects(row[:sides], languages[number])
            if len(kinds) > 1:
                kinds.discard("unlike")  # the others state why
            found.append([kind for kind in KINDS if kind in kinds] if kinds else [])
        return found

    def _row_defects(self, texts: Row, language: str | None) -> set[str]:
        """Return the defects that a row has by itself."""
        found = set(chain.from_iterable(map(encoding_defects, texts)))
        if any(len(text) > self._rules.longest for text in texts):
            found.add("long")
        if any(is_other_script(text, usual) for text, usual in zip(texts, self.survey.scripts, strict=True)):
            found.add("script")
        elif language is not None:
            found.add(language)
        if len(texts) == 2:
            source, target = texts
            if is_unequal(source, target, self.survey.ratio, self._rules.ratio):
                found.add("ratio")
            if len(source) == len(target) and _is_copy(source, target):
                found.discard("language")  # the better word for it
                found.add("copied")
        return found


def _is_copy(source: str, target: str) -> bool:
    same = plain(source).casefold() == plain(target).casefold()
    return same and sum(any(map(str.isalpha, word)) for word in source.split()) >= SHORTEST_COPY
