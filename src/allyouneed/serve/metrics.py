"""Prometheus metrics: requests, queues, batches, tokens, latencies. Each application has its own registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


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

    def step(self, model: str, rows: int, seconds: float) -> None:
        """Record one step of a batch."""
        self.batch.labels(model).observe(rows)
        self.step_time.labels(model).observe(seconds)
