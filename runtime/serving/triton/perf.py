"""Writes a finished request's times and cache blocks under TensorRT-LLM's names."""

from __future__ import annotations

import time

import numpy as np

from tensorwright.runtime.requests.outputs import RequestOutput


def perf_outputs(output: RequestOutput, made: int, longest: int, block_size: int) -> dict[str, np.ndarray]:
    """Returns the tensors by name: times, int64 [1]; counts, int32 [1]; and acceptance_rate, float32 [1].

    Times are nanoseconds of one clock without a date; 0 stands for an event that never came. Blocks are counted for a
    cache that keeps every position. Draft tokens are those of all completions of the request.
    made: the tokens of the completion. longest: the tokens of the request's longest completion.
    """
    now, metrics = time.monotonic_ns(), output.metrics
    first = metrics.time_to_first_token
    spent = (first or 0.0) + (metrics.time_per_output_token or 0.0) * max(longest - 1, 0)
    arrival = now - _ns(spent)
    total = -(-(len(output.prompt_token_ids) + made) // block_size)
    reused = metrics.cached_tokens // block_size
    times = {
        "arrival_time_ns": arrival,
        "first_scheduled_time_ns": 0 if metrics.queue_time is None else arrival + _ns(metrics.queue_time),
        "first_token_time_ns": 0 if first is None else arrival + _ns(first),
        "last_token_time_ns": 0 if first is None else now,
    }
    counts = {
        "kv_cache_alloc_new_blocks": total - reused,
        "kv_cache_reused_blocks": reused,
        "kv_cache_alloc_total_blocks": total,
        "total_accepted_draft_tokens": metrics.accepted_tokens,
        "total_draft_tokens": metrics.draft_tokens,
    }
    result = {name: np.array([value], np.int64) for name, value in times.items()}
    result |= {name: np.array([value], np.int32) for name, value in counts.items()}
    rate = metrics.accepted_tokens / max(metrics.draft_tokens, 1)
    return result | {"acceptance_rate": np.array([rate], np.float32)}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
