"""Prometheus metrics of requests, queues, batches, tokens, times and the process. Each application has a registry."""

import platform

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector

from allyouneed.serve.request_record import RequestRecord
from allyouneed.version import __version__

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)

VERSIONS = {"version": __version__, "python": platform.python_version(), "torch": torch.__version__}


class Metrics:
    """Counters, gauges and histograms of a server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        model = ("model",)
        self.requests = Counter(
            "allyouneed_requests", "Responses by endpoint and status", ("endpoint", "status"), registry=self.registry
        )
        self.latency = Histogram(
            "allyouneed_request_seconds",
            "Time until a response was complete",
            ("endpoint",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.refused = Counter("allyouneed_refused", "Requests refused by a full queue", model, registry=self.registry)
        self.tokens = Counter("allyouneed_tokens", "Tokens decoded row by row", model, registry=self.registry)
        self.waiting = Gauge("allyouneed_waiting", "Rows and items in the queue", model, registry=self.registry)
        self.running = Gauge("allyouneed_running", "Rows in the batch", model, registry=self.registry)
        self.batch = Histogram(
            "allyouneed_batch_rows", "Rows of a step", model, buckets=BATCHES, registry=self.registry
        )
        self.step_time = Histogram(
            "allyouneed_step_seconds", "Time of a step", model, buckets=STEP_SECONDS, registry=self.registry
        )

        self._add_request_metrics()
        self.connections = Gauge("allyouneed_connections", "Open connections", registry=self.registry)
        build = Gauge("allyouneed_build_info", "Versions; always 1", tuple(VERSIONS), registry=self.registry)
        build.labels(**VERSIONS).set(1)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def _add_request_metrics(self) -> None:
        model = ("model",)
        self.prompt_tokens = Counter(
            "allyouneed_prompt_tokens", "Tokens of prompts and sources", model, registry=self.registry
        )
        self.queue_time = Histogram(
            "allyouneed_queue_seconds", "Time in the queue", model, buckets=SECONDS, registry=self.registry
        )
        self.first_token = Histogram(
            "allyouneed_first_token_seconds",
            "Time until the first token was generated",
            model,
            buckets=SECONDS,
            registry=self.registry,
        )

    def forget(self, model: str) -> None:
        """Remove the gauges of a model that is no longer served. Counters stay."""
        for gauge in (self.waiting, self.running):
            gauge.remove(model)

    def observe(self, record: RequestRecord) -> None:
        """Record a request that is complete."""
        self.requests.labels(record.endpoint, str(record.status)).inc()
        self.latency.labels(record.endpoint).observe(record.total_seconds or 0.0)
        if record.model is None:
            return
        self.prompt_tokens.labels(record.model).inc(record.prompt_tokens)
        if record.queue_seconds is not None:
            self.queue_time.labels(record.model).observe(record.queue_seconds)
        if record.first_token_seconds is not None:
            self.first_token.labels(record.model).observe(record.first_token_seconds)

    def step(self, model: str, rows: int, seconds: float) -> None:
        """Record one step of a batch."""
        self.batch.labels(model).observe(rows)
        self.step_time.labels(model).observe(seconds)
