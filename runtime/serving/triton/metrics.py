"""Shows an engine's metrics on Triton's metrics port: Tensorwright's families, and those of TensorRT-LLM's backend.

One thread makes all metric calls of Triton, under one lock, for calls from several threads at once abort the whole
server. Each call is a message to the server's process, so a value is sent only when it has changed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorwright.errors import EngineStoppedError
from tensorwright.runtime.requests.metrics import OUTPUT, PROMPT, Metric, RequestObserver, Sample, engine_samples

PERIOD = 0.1  # seconds between two looks at the engine, as TensorRT-LLM's stats_check_period_ms
LOCK = threading.Lock()
_LENGTHS = (10.0, 50.0, 100.0, 500.0, 1000.0)

REQUESTS = Metric("nv_trt_llm_request_metrics", "gauge", "Requests by state.", ("request_type",))
MEMORY = Metric("nv_trt_llm_runtime_memory_metrics", "gauge", "Bytes that the model uses.", ("memory_type",))
BLOCKS = Metric("nv_trt_llm_kv_cache_block_metrics", "gauge", "KV cache blocks.", ("kv_cache_block_type",))
BATCHER = Metric(
    "nv_trt_llm_inflight_batcher_metrics", "gauge", "In-flight batching.", ("inflight_batcher_specific_metric",)
)
GENERAL = Metric("nv_trt_llm_general_metrics", "gauge", "Steps and their time.", ("general_type",))
LENGTHS = {
    PROMPT: Sample(
        Metric("nv_llm_input_token_len", "histogram", "Prompt tokens.", ("response_metric_type",), _LENGTHS),
        0.0,
        (("response_metric_type", "total_input_tokens"),),
    ),
    OUTPUT: Sample(
        Metric("nv_llm_output_token_len", "histogram", "Generated tokens.", ("response_metric_type",), _LENGTHS),
        0.0,
        (("response_metric_type", "total_output_tokens"),),
    ),
}
"""Maps a histogram of Tensorwright to the sample under TensorRT-LLM's name."""


def trtllm_samples(stats: dict[str, Any], max_batch_size: int) -> Iterator[Sample]:
    """Yields the nv_trt_llm_* values that an engine's statistics hold. Cached blocks count as free."""
    waiting, running = stats["waiting"], stats["running"]
    total, used = stats["total_blocks"], stats["used_blocks"]
    tables: dict[Metric, dict[str, float]] = {
        REQUESTS: {"active": waiting + running, "max": max_batch_size, "scheduled": running, "waiting": waiting},
        MEMORY: {"cpu": resident_bytes(), "gpu": 0, "pinned": 0},
        BLOCKS: {
            "max": total,
            "free": total - used,
            "used": used,
            "tokens_per": stats["block_size"],
            "fraction": used / max(1, total),
            "reused": stats["prefix_hit_tokens"] // stats["block_size"],
        },
        BATCHER: {"generation_requests": running, "micro_batch_id": 0},
        GENERAL: {"iteration_counter": stats["steps"], "timestamp": time.time()},
    }
    for metric, values in tables.items():
        for value_of, value in values.items():
            yield Sample(metric, float(value), ((metric.labels[0], value_of),))


def resident_bytes() -> int:
    """Returns the resident bytes of this process: the weights read so far, the KV cache, and Python."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class TritonMetrics:
    """Shows one engine's metrics until `close`. pb_utils: the module that Triton gives to its Python models.

    If the server has no metrics (`--allow-metrics=false`), one log line says so and nothing is shown. Nothing is shown
    either in a Triton before 23.05, which gives its models no metrics.
    """

    def __init__(self, pb_utils: Any, llm: Any, model: str, version: str):
        self._pb = pb_utils
        self._llm = llm
        self._labels = {"model": model, "version": version}
        self._families: dict[str, Any] = {}
        self._values: dict[tuple[str, Any], Any] = {}  # (name, labels) -> Triton's Metric
        self._sent: dict[tuple[str, Any], float] = {}
        self._observed: deque[Sample] = deque()
        self._steps = -1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensorwright-metrics", daemon=True)
        if not hasattr(pb_utils, "MetricFamily"):
            return
        try:
            with LOCK:
                self._update()
        except pb_utils.TritonModelException as error:
            pb_utils.Logger.log_warn(f"tensorwright: the server takes no metrics, so there are none: {error}")
            return
        llm.add_observer(RequestObserver(self._observed.append))
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and removes the model's values from the port."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with LOCK:
            self._values.clear()
            self._families.clear()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            try:
                with LOCK:
                    self._update()
            except self._pb.TritonModelException as error:
                self._pb.Logger.log_warn(f"tensorwright: metrics were not updated: {error}")

    def _update(self) -> None:
        stats = self._stats()
        for sample in engine_samples(stats, self._llm.running):
            self._send(sample)
        # Values that no step changes, as the time, are sent only with steps or requests; an idle engine sends none.
        if stats is not None and (stats["steps"] != self._steps or stats["waiting"] or stats["running"]):
            self._steps = stats["steps"]
            for sample in trtllm_samples(stats, self._llm.options.max_batch_size or 0):
                self._send(sample)
        while self._observed:
            sample = self._observed.popleft()
            self._add(sample)
            if sample.metric in LENGTHS:
                theirs = LENGTHS[sample.metric]
                self._add(Sample(theirs.metric, sample.value, theirs.labels))

    def _stats(self) -> dict[str, Any] | None:
        try:
            return self._llm.get_stats()
        except EngineStoppedError:
            return None

    def _send(self, sample: Sample) -> None:
        """Sends the present value of a gauge or a counter. Triton's counters take only differences."""
        key = (sample.metric.name, sample.labels)
        before = self._sent.get(key)
        if before == sample.value:
            return
        metric = self._metric(sample)
        if sample.metric.kind == "counter":
            metric.increment(sample.value - (before or 0.0))
        else:
            metric.set(sample.value)
        self._sent[key] = sample.value

    def _add(self, sample: Sample) -> None:
        metric = self._metric(sample)
        if sample.metric.kind == "histogram":
            metric.observe(sample.value)
        else:
            metric.increment(sample.value)

    def _metric(self, sample: Sample) -> Any:
        key = (sample.metric.name, sample.labels)
        if key not in self._values:
            family = self._family(sample.metric)
            labels = {**self._labels, **dict(sample.labels)}
            buckets = {"buckets": list(sample.metric.buckets)} if sample.metric.kind == "histogram" else {}
            self._values[key] = family.Metric(labels=labels, **buckets)
        return self._values[key]

    def _family(self, metric: Metric) -> Any:
        if metric.name not in self._families:
            kind = getattr(self._pb.MetricFamily, metric.kind.upper())
            self._families[metric.name] = self._pb.MetricFamily(name=metric.name, description=metric.help, kind=kind)
        return self._families[metric.name]
