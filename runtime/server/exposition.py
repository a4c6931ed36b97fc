"""Metrics as Prometheus reads them: what `runtime/metrics.py` names, and the server's own requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.types import Scope

from tensorwright.errors import EngineStoppedError
from tensorwright.runtime import metrics
from tensorwright.runtime.llm import LLM
from tensorwright.runtime.metrics import Metric, RequestObserver, Sample
from tensorwright.runtime.server.registry import EngineRegistry

_SECONDS = metrics.DURATION.buckets


class HttpMetrics:
    """Requests as HTTP saw them. A path is that of the route, so that there are few."""

    def __init__(self, registry: CollectorRegistry):
        self.in_flight = Gauge("tensorwright_http_requests_in_flight", "Requests under way.", registry=registry)
        names = ("method", "path", "status")
        self._requests = Counter("tensorwright_http_requests_total", "Requests by status.", names, registry=registry)
        self._seconds = Histogram(
            "tensorwright_http_request_seconds",
            "From a request's first line to the last byte of its answer.",
            ("path",),
            registry=registry,
            buckets=_SECONDS,
        )

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """status 0: the client left before it was answered."""
        route = scope.get("route")
        path = getattr(route, "path", "other")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST") else "other"
        self._requests.labels(method, path, str(status or "none")).inc()
        self._seconds.labels(path).observe(seconds)


class Exposition:
    """One registry of its own for a server's engines. Requests that end are counted as they end, the rest is read when
    somebody asks."""

    def __init__(self, engines: EngineRegistry):
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engines))
        self.http = HttpMetrics(self._registry)
        self._observed = {metric: _make(metric, self._registry) for metric in metrics.OBSERVED}
        for name, llm in engines.items():
            llm.add_observer(RequestObserver(lambda sample, name=name: self._record(name, sample)))  # type: ignore[misc]

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _record(self, model: str, sample: Sample) -> None:
        series = self._observed[sample.metric].labels(model, *(value for _, value in sample.labels))
        if isinstance(series, Histogram):
            series.observe(sample.value)
        else:
            series.inc(sample.value)


def _make(metric: Metric, registry: CollectorRegistry) -> Histogram | Counter:
    names = ("model", *metric.labels)
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, names, registry=registry, buckets=metric.buckets)
    return Counter(metric.name, metric.help, names, registry=registry)


class _EngineCollector(Collector):
    """Reads every engine's stats at the moment it is asked."""

    def __init__(self, engines: EngineRegistry):
        self._engines = engines

    def collect(self) -> Iterable[Family]:
        families: dict[Metric, CounterMetricFamily | GaugeMetricFamily] = {
            metric: self._family(metric) for metric in metrics.GAUGES_AND_TOTALS
        }
        for name, llm in self._engines.items():
            for sample in _samples(llm):
                values = [name, *(value for _, value in sample.labels)]
                families[sample.metric].add_metric(values, sample.value)
        return families.values()

    @staticmethod
    def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        return kind(metric.name, metric.help, labels=("model", *metric.labels))


def _samples(llm: LLM) -> Iterator[Sample]:
    try:
        stats = llm.get_stats()
    except EngineStoppedError:  # it was shut down
        stats = None
    return metrics.engine_samples(stats, llm.running)
