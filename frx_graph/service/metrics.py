"""The service in figures, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class ServiceMetrics:
    """Of one service; two in one process do not share theirs."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "frx_http_requests_total", "Requests that were answered.", ("route", "method", "status"), registry=registry
        )
        self.request_seconds = Histogram(
            "frx_http_request_seconds", "From the request's head to the answer's end.", ("route",),
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self.analyses = Counter(
            "frx_analyses_total", "Analyses by how they ended.", ("task", "outcome"), registry=registry
        )
        self.analysis_seconds = Histogram(
            "frx_analysis_seconds", "Of an analysis, waiting included.", ("task",), registry=registry, buckets=_SECONDS
        )
        self.busy_workers = Gauge("frx_workers_busy", "Workers that analyse.", registry=registry)
        self.waiting = Gauge("frx_analyses_waiting", "Analyses that wait for a worker.", registry=registry)

    def text(self) -> bytes:
        """All of them now."""
        return generate_latest(self._registry)
