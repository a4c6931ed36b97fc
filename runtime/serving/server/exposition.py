"""Exposes metrics to Prometheus: those that `runtime/requests/metrics.py` names, and those of HTTP requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.types import Scope

from tensorwright.errors import EngineStoppedError
from tensorwright.runtime.requests import metrics
from tensorwright.runtime.requests.metrics import Metric, RequestObserver, Sample
from tensorwright.runtime.serving.server.body_memory import BodyMemory
from tensorwright.runtime.serving.server.connections import CLOSED_EARLY, Connections
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.pools import WorkPool
from tensorwright.runtime.serving.server.rate_limits import RateLimits
from tensorwright.runtime.serving.server.response_store import ResponseStore
from tensorwright.runtime.serving.server.served_model import ServedModel
from tensorwright.runtime.serving.server.shares import Shares
from tensorwright.runtime.serving.server.transfers import Transfers

_SECONDS = metrics.DURATION.buckets


class HttpMetrics:
    """Metrics of HTTP requests. The label `path` has the route's path, so that there are few values."""

    def __init__(self, registry: CollectorRegistry):
        self._registry = registry
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

    def show_connections(self, connections: Connections) -> None:
        """Shows the connections from now on. An application without the server's own sockets has none to show."""
        self._registry.register(_Collected(lambda: _connection_families(connections)))

    def show_shares(self, shares: Shares) -> None:
        self._registry.register(_Collected(lambda: [_share_family(shares)]))

    def show_rates(self, rates: RateLimits) -> None:
        self._registry.register(_Collected(lambda: _rate_families(rates)))

    def show_bodies(self, memory: BodyMemory) -> None:
        self._registry.register(_Collected(lambda: _body_families(memory)))

    def show_responses(self, store: ResponseStore) -> None:
        self._registry.register(_Collected(lambda: _response_families(store)))

    def show_transfers(self, transfers: Transfers) -> None:
        self._registry.register(_Collected(lambda: _transfer_families(transfers)))

    def show_counts(self, make: Callable[[], Mapping[str, tuple[str, int]]]) -> None:
        """Shows counters. make: returns, by name of the metric, its description and its value."""

        def families() -> list[Family]:
            made: list[Family] = []
            for name, (help, value) in make().items():
                family = CounterMetricFamily(name, help)
                family.add_metric([], value)
                made.append(family)
            return made

        self._registry.register(_Collected(families))

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Counts one request. status: the HTTP status; 0 means that the client left before the answer began."""
        route = scope.get("route")
        path = getattr(route, "path", "other")
        method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE") else "other"
        self._requests.labels(method, path, str(status or "none")).inc()
        self._seconds.labels(path).observe(seconds)


class _Collected(Collector):
    """A collector whose families are made at every scrape."""

    def __init__(self, make: Callable[[], Iterable[Family]]):
        self._make = make

    def collect(self) -> Iterable[Family]:
        return self._make()


def _connection_families(connections: Connections) -> list[Family]:
    now = GaugeMetricFamily("tensorwright_http_connections", "Open connections.", labels=["state"])
    now.add_metric(["served"], connections.served)
    now.add_metric(["waiting"], connections.open - connections.served)
    closed = CounterMetricFamily(
        "tensorwright_http_connections_closed_total", "Closed early, by reason.", labels=["reason"]
    )
    for reason in CLOSED_EARLY:
        closed.add_metric([reason], connections.closed[reason])
    return [now, closed]


def _body_families(memory: BodyMemory) -> list[Family]:
    held = GaugeMetricFamily("tensorwright_http_body_bytes", "Of bodies on their way, beyond 64 KiB of each.")
    held.add_metric([], memory.held)
    refused = CounterMetricFamily("tensorwright_http_bodies_refused_total", "Bodies that there was no room for.")
    refused.add_metric([], memory.refused)
    return [held, refused]


def _response_families(store: ResponseStore) -> list[Family]:
    count, size, dropped = store.state()
    kept = GaugeMetricFamily("tensorwright_responses_stored", "Responses that are kept for later requests.")
    kept.add_metric([], count)
    held = GaugeMetricFamily("tensorwright_responses_stored_bytes", "Of responses that are kept.")
    held.add_metric([], size)
    went = CounterMetricFamily("tensorwright_responses_dropped_total", "Responses that had to make room.")
    went.add_metric([], dropped)
    return [kept, held, went]


def _share_family(shares: Shares) -> Family:
    family = GaugeMetricFamily("tensorwright_http_key_requests", "Under way, by number of the key.", labels=["key"])
    for number, count in shares.of_keys():
        family.add_metric([str(number)], count)
    return family


def _rate_families(rates: RateLimits) -> list[Family]:
    used = CounterMetricFamily("tensorwright_http_key_tokens_total", "Of keys with a bound.", labels=["key"])
    refused = CounterMetricFamily("tensorwright_http_key_limited_total", "Requests beyond it.", labels=["key"])
    for number, bucket in rates.items():
        used.add_metric([str(number)], bucket.used)
        refused.add_metric([str(number)], bucket.refused)
    return [used, refused]


def _transfer_families(transfers: Transfers) -> list[Family]:
    fetched, names = transfers.fetched, ("way",)
    prefixes = CounterMetricFamily("tensorwright_transfer_prefixes_total", "Prefixes by way.", labels=names)
    content = CounterMetricFamily("tensorwright_transfer_bytes_total", "Bytes of blocks and states.", labels=names)
    lost = CounterMetricFamily("tensorwright_transfer_lost_total", "Transfers that failed, by way.", labels=names)
    shared = CounterMetricFamily("tensorwright_transfer_shared_total", "Fetched through shared memory.")
    shared.add_metric([], fetched.shared)
    ways = [("fetched", fetched.prefixes, fetched.content, fetched.lost)]
    if transfers.server is not None:
        sent = transfers.server.sent
        ways.append(("sent", sent.prefixes, sent.content, sent.failed))
    for way, count, size, failed in ways:
        prefixes.add_metric([way], count)
        content.add_metric([way], size)
        lost.add_metric([way], failed)
    return [prefixes, content, lost, shared]


class Exposition:
    """The registry of one server's metrics. Requests are counted when they end; other values are read at a scrape."""

    def __init__(self, engines: EngineRegistry, pools: Iterable[WorkPool] = ()):
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engines))
        self._registry.register(_PoolCollector(pools))
        self.http = HttpMetrics(self._registry)
        ended = _EndedRequests(self._registry)
        for name, llm in engines.items():
            llm.add_observer(RequestObserver(partial(ended.record, name)))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _EndedRequests:
    """The metrics that are counted when requests end. Engines refer to this object, so it refers to no engine: a
    circle of references would keep engines alive."""

    def __init__(self, registry: CollectorRegistry):
        self._series = {metric: _make(metric, registry) for metric in metrics.OBSERVED}

    def record(self, model: str, sample: Sample) -> None:
        series = self._series[sample.metric].labels(model, *(value for _, value in sample.labels))
        if isinstance(series, Histogram):
            series.observe(sample.value)
        else:
            series.inc(sample.value)


def _make(metric: Metric, registry: CollectorRegistry) -> Histogram | Counter:
    names = ("model", *metric.labels)
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, names, registry=registry, buckets=metric.buckets)
    return Counter(metric.name, metric.help, names, registry=registry)


class _PoolCollector(Collector):
    """Reads the state of the thread pools at every scrape."""

    def __init__(self, pools: Iterable[WorkPool]):
        self._pools = tuple(pools)

    def collect(self) -> Iterable[Family]:
        names = ("pool",)
        waiting = GaugeMetricFamily("tensorwright_pool_jobs_waiting", "Jobs that wait for a thread.", labels=names)
        running = GaugeMetricFamily("tensorwright_pool_jobs_running", "Jobs that threads work on.", labels=names)
        oldest = GaugeMetricFamily("tensorwright_pool_oldest_seconds", "Age of the oldest of these.", labels=names)
        refused = CounterMetricFamily("tensorwright_pool_refused_total", "Jobs answered 429.", labels=names)
        for pool in self._pools:
            state = pool.state()
            waiting.add_metric([pool.name], state.waiting)
            running.add_metric([pool.name], state.running)
            oldest.add_metric([pool.name], state.oldest)
            refused.add_metric([pool.name], state.refused)
        return waiting, running, oldest, refused


class _EngineCollector(Collector):
    """Reads every engine's statistics at every scrape."""

    def __init__(self, engines: EngineRegistry):
        self._engines = engines

    def collect(self) -> Iterable[Family]:
        families: dict[Metric, CounterMetricFamily | GaugeMetricFamily] = {
            metric: self._family(metric) for metric in metrics.GAUGES_AND_TOTALS
        }
        for name, llm in self._engines.items():
            for sample in _samples(llm):
                if sample.metric not in families:  # It is one of metrics.FLEET, which most servers do not have.
                    families[sample.metric] = self._family(sample.metric)
                values = [name, *(value for _, value in sample.labels)]
                families[sample.metric].add_metric(values, sample.value)
        return families.values()

    @staticmethod
    def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        return kind(metric.name, metric.help, labels=("model", *metric.labels))


def _samples(llm: ServedModel) -> Iterator[Sample]:
    try:
        stats = llm.get_stats()
    except EngineStoppedError:  # The engine was shut down.
        stats = None
    return metrics.engine_samples(stats, llm.running)
