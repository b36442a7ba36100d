"""The metrics of several worker processes as one.

Each worker writes its metrics to a file once a second. The worker that answers `/metrics` reads the files of all
workers and labels their values with the worker's number. So the values of the others are at most a second old, and a
value that is a sum over workers is left to the query: `sum without (worker) (...)`.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class SharedMetrics:
    """The metrics of this worker, and those that all workers have written to a folder."""

    def __init__(self, own: CollectorRegistry, folder: Path, worker: int) -> None:
        self._own, self._folder, self._worker = own, folder, worker
        self._writing = threading.Lock()  # each request for /metrics writes, too, in a thread
        self._all = CollectorRegistry()
        self._all.register(_Merged(folder))

    def write(self) -> None:
        """Write the metrics of this worker."""
        temporary = metrics_file(self._folder, self._worker).with_suffix(".tmp")
        with self._writing:
            temporary.write_bytes(generate_latest(self._own))
            os.replace(temporary, metrics_file(self._folder, self._worker))

    def read(self) -> bytes:
        """Return the metrics of all workers, those of this one as they are now."""
        self.write()
        return generate_latest(self._all)


def metrics_file(folder: Path, worker: int) -> Path:
    """Return the file of a worker's metrics."""
    return folder / f"{worker}.prom"


class _Merged(Collector):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once, with the values of all workers."""
        merged: dict[str, Metric] = {}
        for path in sorted(self._folder.glob("*.prom")):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:  # its worker has just ended
                continue
            for family in text_string_to_metric_families(text):
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {**sample.labels, "worker": path.stem}, sample.value)
        yield from merged.values()
