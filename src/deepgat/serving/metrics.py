"""What Prometheus reads."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from deepgat import __version__

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The counters of one service; a registry of its own, so that several can share a process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "deepgat_requests", "Requests that were answered.", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "deepgat_request_seconds", "Seconds from a request to its answer.", ["route"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge(
            "deepgat_requests_in_flight", "Requests that wait for their answer.", registry=registry
        )
        self.nodes = Counter(
            "deepgat_nodes", "Nodes that were predicted or explained.", registry=registry
        )
        self.passes = Counter(
            "deepgat_passes", "Runs of the network.", ["route"], registry=registry
        )
        self.ready = Gauge(
            "deepgat_ready", "1 while predictions are answered, otherwise 0.", registry=registry
        )
        self.build = Gauge("deepgat_build_info", "Version.", ["version"], registry=registry)
        self.build.labels(__version__).set(1)

    def text(self) -> bytes:
        return generate_latest(self.registry)
