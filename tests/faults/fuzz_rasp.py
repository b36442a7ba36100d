"""Fuzz the RASP parser and evaluator with coverage: no input crashes or hangs them.

    pip install atheris
    python tests/faults/fuzz_rasp.py -max_total_time=600 -timeout=30 -rss_limit_mb=2000

Half of the inputs are libFuzzer's text; the others choose sentences of the grammar, which reach further. Any exception
other than `RaspError` (which the REPL prints) is a finding, and so is an input that exceeds the timeout.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["allyouneed.rasp", "lark"]):
    from allyouneed.rasp.repl import Session
sys.path.insert(0, str(Path(__file__).parents[1] / "rasp"))
from fuzz_programs import WORDS, program


class Choices:
    """A replacement for random.Random in which every choice is a byte of the fuzzer's input."""

    def __init__(self, data: "atheris.FuzzedDataProvider") -> None:
        self.data = data

    def choice(self, of):
        return of[self.data.ConsumeIntInRange(0, len(of) - 1)]

    def randint(self, low, high):
        return self.data.ConsumeIntInRange(low, high)

    def random(self):
        return self.data.ConsumeIntInRange(0, 99) / 100


def one_input(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    choices = Choices(provider)
    session = Session(lambda line: None, compat=provider.ConsumeBool())
    match provider.ConsumeIntInRange(0, 2):
        case 0:
            text = provider.ConsumeUnicode(2_000)
        case 1:
            text = " ".join(choices.choice(WORDS) for _ in range(provider.ConsumeIntInRange(1, 60)))
        case _:
            text = "\n".join(program(choices) for _ in range(provider.ConsumeIntInRange(1, 4)))  # type: ignore[arg-type]
    if "load" in text:
        return  # files are not fuzzed here
    for line in text.split("\n"):
        session.feed(line)


if __name__ == "__main__":
    for compat in (False, True):
        Session(compat=compat)  # build the parsers now, so that the first input is not charged for it
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
