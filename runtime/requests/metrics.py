"""Turns an engine's counters and a request's times into samples of metrics.

It uses no metrics library: the server passes samples to prometheus-client, the Triton backend to Triton's own families.
Every name begins with `tensorwright_`, names of counters end in `_total`, times are in seconds. The server and the
backend add the label `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.runtime.requests.outputs import RequestOutput

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """One metric.

    kind: "counter", "gauge" or "histogram". labels: the names of its labels. buckets: the upper bounds of a histogram's
    buckets, without infinity.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    """The present value of a gauge or counter, or one observation of a histogram."""

    metric: Metric
    value: float
    labels: Labels = ()


def _metric(name: str, kind: str, help_text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(f"tensorwright_{name}", kind, help_text, labels, buckets)


# The metric of each entry of LLM.get_stats().
ENGINE: dict[str, Metric] = {
    "running": _metric("requests_running", "gauge", "Completions that run."),
    "waiting": _metric("requests_waiting", "gauge", "Requests that wait for their first step."),
    "stalled_seconds": _metric("stalled_seconds", "gauge", "For how long there were requests and no step ended."),
    "waste_slots": _metric("kv_waste_slots", "gauge", "Positions of used KV blocks that hold no token."),
    "steps": _metric("steps_total", "counter", "Steps of the engine."),
    "steps_rolled_back": _metric("steps_rolled_back_total", "counter", "Steps that failed and were undone."),
    "preemptions": _metric("preemptions_total", "counter", "Sequences that gave their KV blocks to others."),
    "resumed_kept_tokens": _metric(
        "preempted_kept_tokens_total", "counter", "Tokens of preempted sequences that the KV cache had at their return."
    ),
    "resumed_computed_tokens": _metric(
        "preempted_computed_tokens_total", "counter", "Tokens of preempted sequences that were computed once more."
    ),
    "resumed_fetches": _metric(
        "preempted_fetches_total", "counter", "Preempted sequences whose blocks were to be read back."
    ),
    "resumed_passed_over": _metric(
        "preempted_passed_over_total", "counter", "Preempted sequences that computed because reading would take longer."
    ),
    "evictions": _metric("kv_evictions_total", "counter", "Cached KV blocks that were given up for new ones."),
    "generated_tokens": _metric("generated_tokens_total", "counter", "Tokens sampled."),
    "prefill_tokens": _metric("prefill_tokens_total", "counter", "Prompt tokens computed, recomputed ones included."),
    "decode_tokens": _metric("decode_tokens_total", "counter", "Generated tokens that were computed."),
    "sat_out": _metric(
        "guided_sat_out_total", "counter", "Times that a guided completion sat out steps, its mask not being there."
    ),
    "steps_ahead": _metric(
        "steps_ahead_total", "counter", "Steps that were started before the tokens of the last one were known."
    ),
    "forced_tokens": _metric(
        "guided_forced_tokens_total", "counter", "Tokens that a grammar forced and that cost no step of their own."
    ),
    "requests_late": _metric("deadlines_missed_total", "counter", "Requests that could not end by their deadline."),
    "steps_over_itl_goal": _metric(
        "steps_over_itl_goal_total", "counter", "With an ITL goal: steps with running completions that took longer."
    ),
    "drafts": _metric("drafts_total", "counter", "Proposals of tokens that a step computed."),
    "draft_tokens": _metric("draft_tokens_total", "counter", "Tokens that were proposed."),
    "accepted_tokens": _metric("draft_tokens_accepted_total", "counter", "Proposed tokens that were right."),
    "draft_failures": _metric("draft_failures_total", "counter", "Proposals that failed; their steps went on without."),
    "draft_seconds": _metric("draft_seconds_total", "counter", "Seconds in which proposals were made."),
    "state_slots": _metric(
        "state_slots", "gauge", "Slots for the states of recurrent layers, with those of snapshots."
    ),
    "used_state_slots": _metric("state_slots_used", "gauge", "Of those, slots of running sequences and snapshots."),
    "state_snapshots": _metric("state_snapshots", "gauge", "States that are kept only for later prompts."),
    "state_snapshots_taken": _metric("state_snapshots_taken_total", "counter", "States that were kept."),
    "state_snapshots_evicted": _metric(
        "state_snapshots_evicted_total",
        "counter",
        "Kept states that gave way to others; not those that went with a block.",
    ),
    "state_snapshot_hits": _metric("state_snapshot_hits_total", "counter", "Starts of sequences behind a kept state."),
    "invariant_checks": _metric("invariant_checks_total", "counter", "Checks of the engine's own counts."),
    "pinned_prefixes": _metric("pinned_prefixes", "gauge", "Prefixes that are pinned in the KV cache."),
    "pinned_bytes": _metric("pinned_bytes", "gauge", "Bytes of the KV cache that pinned prefixes hold."),
    "tier_memory_bytes": _metric("tier_memory_bytes", "gauge", "Bytes of forgotten KV blocks that are kept in memory."),
    "tier_memory_blocks": _metric("tier_memory_blocks", "gauge", "Forgotten KV blocks that are kept in memory."),
    "tier_memory_hits": _metric("tier_memory_hits_total", "counter", "KV blocks that were read back from memory."),
    "tier_memory_evicted": _metric(
        "tier_memory_evictions_total", "counter", "KV blocks that left the memory, for the disk or for good."
    ),
    "tier_disk_bytes": _metric("tier_disk_bytes", "gauge", "Bytes of the files of KV blocks."),
    "tier_disk_blocks": _metric("tier_disk_blocks", "gauge", "KV blocks in files."),
    "tier_disk_hits": _metric("tier_disk_hits_total", "counter", "KV blocks that were read back from files."),
    "tier_disk_evicted": _metric("tier_disk_evictions_total", "counter", "KV blocks whose files gave way or were old."),
    "tier_disk_read_bytes": _metric("tier_disk_read_bytes_total", "counter", "Bytes of KV blocks read from files."),
    "tier_disk_written_bytes": _metric("tier_disk_written_bytes_total", "counter", "Bytes of files of KV blocks."),
    "tier_disk_failed_writes": _metric(
        "tier_disk_failed_writes_total", "counter", "KV blocks that could not be written, as on a full disk."
    ),
    "tier_disk_dropped": _metric("tier_disk_dropped_total", "counter", "Damaged files and KV blocks."),
    "tier_lost": _metric("tier_lost_total", "counter", "KV blocks kept nowhere: too many on their way, or no memory."),
    "prefix_fetches": _metric("prefix_fetches_total", "counter", "Prefixes that were to be read back."),
    "prefix_fetches_failed": _metric("prefix_fetches_failed_total", "counter", "Of those, the ones that did not come."),
    "prefix_fetches_passed_over": _metric(
        "prefix_fetches_passed_over_total", "counter", "Prefixes that were computed because reading would take longer."
    ),
    "prefix_fetch_tokens": _metric("prefix_fetch_tokens_total", "counter", "Tokens of the prefixes that came."),
    "prefix_fetch_seconds": _metric("prefix_fetch_seconds_total", "counter", "Seconds that requests waited for them."),
    "prefix_lookup_tokens": _metric("prefix_lookup_tokens_total", "counter", "Tokens looked up in the prefix cache."),
    "prefix_hit_tokens": _metric("prefix_hit_tokens_total", "counter", "Of those, tokens that were found."),
}
ENDED: dict[str, str] = {
    "requests_finished": "finished",
    "requests_aborted": "aborted",
    "requests_timed_out": "timed_out",
    "requests_failed": "failed",
}
"""The entry of LLM.get_stats() -> the value of the label `outcome` of COMPLETIONS."""
COMPLETIONS = _metric(
    "completions_total",
    "counter",
    "Completions that ended in the engine. A stop string aborts there; see completions_by_reason_total.",
    "outcome",
)
# The metric of each entry of a cache group in LLM.get_stats().
BLOCKS: dict[str, Metric] = {
    "total_blocks": _metric("kv_blocks", "gauge", "KV blocks of a cache group, by its window; 0 sees all.", "window"),
    "free_blocks": _metric("kv_blocks_free", "gauge", "KV blocks that hold nothing.", "window"),
    "cached_blocks": _metric("kv_blocks_cached", "gauge", "KV blocks kept only for later prompts.", "window"),
    "used_blocks": _metric("kv_blocks_used", "gauge", "KV blocks that requests use.", "window"),
}
USAGE = _metric("kv_usage_ratio", "gauge", "Share of the KV blocks that requests use, 0 to 1.", "window")
VIOLATIONS = _metric(
    "invariant_violations_total", "counter", "Checks that found a bug of the engine, which then stopped."
)
UP = _metric("engine_up", "gauge", "1 while the engine takes requests, 0 after it stopped.")

# The metric of each entry of "fleet" in the statistics of an engine whose replicas run elsewhere.
FLEET: dict[str, Metric] = {
    "replicas": _metric("replicas", "gauge", "Replicas of the engine that answer; only with --ray, as the next three."),
    "restarted": _metric(
        "replica_requests_restarted_total", "counter", "Requests of a lost replica that had not begun, sent to another."
    ),
    "resumed": _metric(
        "replica_requests_resumed_total", "counter", "Requests of a lost replica that went on elsewhere."
    ),
    "lost": _metric("replica_requests_lost_total", "counter", "Requests that ended with ReplicaLostError."),
}

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_LENGTHS = tuple(float(1 << power) for power in range(18))
QUEUE = _metric("queue_seconds", "histogram", "From arrival to the first step of a request.", buckets=_SECONDS)
TTFT = _metric("time_to_first_token_seconds", "histogram", "From arrival to the first token.", buckets=_SECONDS)
ITL = _metric("inter_token_seconds", "histogram", "Between two tokens of a completion.", buckets=_GAPS)
TPOT = _metric("time_per_output_token_seconds", "histogram", "A request's mean after the first token.", buckets=_GAPS)
DURATION = _metric("request_seconds", "histogram", "From arrival to the last token.", buckets=_SECONDS)
PROMPT = _metric("prompt_tokens", "histogram", "Tokens of a prompt.", buckets=_LENGTHS)
OUTPUT = _metric("output_tokens", "histogram", "Tokens of a completion.", buckets=_LENGTHS)
CACHED = _metric("cached_prompt_tokens_total", "counter", "Prompt tokens taken from the prefix cache.")
REASONS = _metric(
    "completions_by_reason_total", "counter", "Completions by finish reason: stop, length, abort, timeout.", "reason"
)
ERRORS = _metric("request_errors_total", "counter", "Requests that ended with an error, by its class.", "error")

GAUGES_AND_TOTALS: tuple[Metric, ...] = (*ENGINE.values(), COMPLETIONS, *BLOCKS.values(), USAGE, VIOLATIONS, UP)
"""The metrics of `engine_samples`. Their samples are present values."""
OBSERVED: tuple[Metric, ...] = (QUEUE, TTFT, ITL, TPOT, DURATION, PROMPT, OUTPUT, CACHED, REASONS, ERRORS)
"""The metrics of `request_samples`. A sample is added to a counter, or observed by a histogram."""


def engine_samples(stats: Mapping[str, Any] | None, running: bool = True) -> Iterator[Sample]:
    """Yields the samples of LLM.get_stats().

    stats: None for an engine that was shut down, which has only UP. An engine that stopped by itself has UP and
    VIOLATIONS.
    """
    yield Sample(UP, 1.0 if running and stats is not None else 0.0)
    if stats is None:
        return
    yield Sample(VIOLATIONS, float(stats["invariant_violations"]))
    if not running:
        return
    for name, metric in ENGINE.items():
        yield Sample(metric, float(stats[name]))
    for name, outcome in ENDED.items():
        yield Sample(COMPLETIONS, float(stats[name]), (("outcome", outcome),))
    for name, value in stats.get("fleet", {}).items():
        yield Sample(FLEET[name], float(value))
    for group in stats["groups"]:
        # A window and a chunk of as many positions are two groups, and so is a window with sink tokens. A group that
        # keeps a budget of positions has no window.
        sinks = f" and {group['sink_tokens']} first" if group["sink_tokens"] else ""
        kept = f" of {group['kv_budget']} kept" if group["kv_budget"] else ""
        window = (("window", f"{group['window']}{' chunked' if group['chunked'] else ''}{sinks}{kept}"),)
        for name, metric in BLOCKS.items():
            yield Sample(metric, float(group[name]), window)
        yield Sample(USAGE, group["used_blocks"] / max(1, group["total_blocks"]), window)


def request_samples(output: RequestOutput, error: BaseException | None = None) -> Iterator[Sample]:
    """Yields the samples of a request that ended: counts for counters, observations for histograms. error: the error
    with which it ended, None without one."""
    times = output.metrics
    yield Sample(PROMPT, float(len(output.prompt_token_ids)))
    for metric, value in (
        (QUEUE, times.queue_time),
        (TTFT, times.time_to_first_token),
        (TPOT, times.time_per_output_token),
        (DURATION, times.total_time),
    ):
        if value is not None:
            yield Sample(metric, value)
    for gap in times.inter_token_times:
        yield Sample(ITL, gap)
    if times.cached_tokens:
        yield Sample(CACHED, float(times.cached_tokens))
    for completion in output.outputs:
        yield Sample(OUTPUT, float(len(completion.token_ids)))
        if completion.finish_reason is not None:
            yield Sample(REASONS, 1.0, (("reason", completion.finish_reason),))
    if error is not None:
        yield Sample(ERRORS, 1.0, (("error", type(error).__name__),))


class RequestObserver:
    """An observer for `LLM.add_observer`. It passes every sample of a request that ended to `record`, which must be
    quick."""

    def __init__(self, record: Callable[[Sample], None]):
        self._record = record

    def __call__(self, output: RequestOutput, error: BaseException | None) -> None:
        for sample in request_samples(output, error):
            self._record(sample)
