"""Fuzz the readers of recipes, tokenisers, codecs, manifests and safetensors headers, guided by coverage.

    pip install atheris
    python tests/faults/fuzz_readers.py recipe -max_total_time=600 -timeout=30 -rss_limit_mb=3000

Any exception other than a one-line `UserError` is a finding, and so is an input that exceeds the timeout.
"""

import collections
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["allyouneed.config", "allyouneed.storage", "allyouneed.tasks", "tomllib"]):
    import readers

counts = collections.Counter[str]()


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in readers.READERS:
        sys.exit(f"name a reader: {', '.join(readers.READERS)}")
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None  # the fuzzer writes thousands of files a second
    with tempfile.TemporaryDirectory(dir=base) as folder:
        readers.try_reader(name, b"", Path(folder))  # build the good examples now, so that no input is charged for it

        def one_input(data: bytes) -> None:
            counts[readers.try_reader(name, data, Path(folder))] += 1
            total = sum(counts.values())
            if total & (total - 1) == 0 and total > 1000:  # libFuzzer ends the process itself
                print(f"{name}: {dict(counts)}", file=sys.stderr)

        atheris.Setup([sys.argv[0], *sys.argv[2:]], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
