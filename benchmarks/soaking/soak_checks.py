"""What must hold of a soak: nothing lost, nothing left over, nothing that grows, and the same bits as alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

from soak_client import Clients, Outcome
from soak_jobs import FINISHED
from soak_server import Held, Life

MEMORY_GROWTH = 48 << 20
"""Bytes by which anonymous memory may grow from the first fifth of a life to its last one, whatever the requests."""
FILE_GROWTH, THREAD_GROWTH = 8, 4
IDLE_PATIENCE = 120.0
"""Seconds in which all that requests held must be free after the last answer."""
EMPTY = (
    "tensorwright_requests_running", "tensorwright_requests_waiting", "tensorwright_kv_blocks_used",
    "tensorwright_http_key_requests", "tensorwright_http_body_bytes", "tensorwright_pool_jobs_waiting",
    "tensorwright_http_connections{state=served}", "tensorwright_kv_usage_ratio",
)  # fmt: skip
"""Metrics that are 0 when nobody asks. One scrape is under way itself: http_requests_in_flight is 1."""


def leftovers(metrics: dict[str, float]) -> dict[str, float]:
    """Returns what is still in use although nobody asks. An engine in whose place another one is being put has no
    figures but that it is not up."""
    if "tensorwright_kv_blocks_free" not in {name.split("{")[0] for name in metrics}:
        return {"engines that are not up": 1.0}
    left = {name: value for name, value in metrics.items() if name.startswith(EMPTY) and value != 0}
    if metrics["tensorwright_http_requests_in_flight"] != 1:
        left["tensorwright_http_requests_in_flight"] = metrics["tensorwright_http_requests_in_flight"]
    blocks = {name.split("{")[0]: value for name, value in metrics.items() if name.startswith("tensorwright_kv_blocks")}
    free = blocks["tensorwright_kv_blocks_free"] + blocks["tensorwright_kv_blocks_cached"]
    if free != blocks["tensorwright_kv_blocks"]:
        left["KV blocks that are neither free nor cached"] = blocks["tensorwright_kv_blocks"] - free
    if metrics.get("tensorwright_invariant_violations_total"):
        left["invariant violations"] = metrics["tensorwright_invariant_violations_total"]
    return left


async def wait_until_idle(life: Life) -> tuple[dict[str, float], dict[str, float]]:
    """Waits until nothing is in use. Returns the metrics, and what is in use in spite of that."""
    given_up = time.monotonic() + IDLE_PATIENCE
    while True:
        metrics = await asyncio.to_thread(life.metrics)
        left = leftovers(metrics)
        if not left or time.monotonic() > given_up:
            return metrics, left
        await asyncio.sleep(0.2)


def growth(held: Sequence[Held]) -> list[str]:
    """Returns what grew too much from the first to the last sample of a life."""
    if len(held) < 2:
        return []
    first, last = held[0], held[-1]
    bounds = {"memory": MEMORY_GROWTH, "files": FILE_GROWTH, "threads": THREAD_GROWTH}
    grown = {name: getattr(last, name) - getattr(first, name) for name in bounds}
    return [
        f"{name} grew by {grown[name]} from {getattr(first, name)}, at most {most} is allowed: "
        f"{[asdict(one)[name] for one in held]}"
        for name, most in bounds.items()
        if grown[name] > most
    ]


def accounting(life: Life, outcomes: Sequence[Outcome], metrics: dict[str, float]) -> list[str]:
    """Compares what clients saw with the server's log and counters.

    Every try whose client had a status has one line with that status; no request has two lines; what the log says by
    status is what the counters of HTTP say; completions by reason are those of the log.
    """
    faults = []
    for outcome in outcomes:
        for name, status in outcome.tries.items():
            lines = life.log.statuses.get(name, [])
            if len(lines) > 1:
                faults.append(f"request {name} has {len(lines)} lines in the log: {lines}")
            elif status is not None and lines and lines != [status]:
                faults.append(f"request {name} has the status {lines[0]} in the log, its client saw {status}")
    logged = Counter(str(status or "none") for name, lines in life.log.statuses.items() for status in lines
                     if name.startswith("soak-"))  # fmt: skip
    counted = Counter[str]()
    for name, value in metrics.items():
        if name.startswith("tensorwright_http_requests_total{method=POST"):
            counted[name.rsplit("status=", 1)[1].rstrip("}")] += int(value)
    if logged != counted:
        faults.append(f"HTTP requests by status: the log has {dict(logged)}, the counters {dict(counted)}")
    return faults


def missing_lines(lives: Sequence[Life], outcomes: Sequence[Outcome]) -> list[str]:
    """Returns the tries that had an answer and that no life's log knows."""
    return [
        f"request {name} was answered with {status} and is in no log"
        for outcome in outcomes
        for name, status in outcome.tries.items()
        if status is not None and not any(name in life.log.statuses for life in lives)
    ]


def wrong_ends(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"job {outcome.job.number} ({outcome.job.kind}, {outcome.job.manner}): {outcome.end}"
        for outcome in outcomes
        if not outcome.right
    ]


async def compare_alone(clients: Clients, survivors: Sequence[Outcome]) -> list[str]:
    """Asks a quiet server for the same, one after the other. Returns what differs."""
    faults = []
    for outcome in survivors:
        steps = tuple((path, {**body, "deadline": None} if "deadline" in body else body)
                      for path, body in outcome.job.steps)  # fmt: skip
        alone = await clients.run(replace(outcome.job, steps=steps, manner="takes"))
        job = outcome.job
        if alone.end != FINISHED:
            faults.append(f"job {job.number} ({job.kind}) finished in company, alone: {alone.end}")
        elif alone.answers != outcome.answers:
            faults.append(f"job {job.number} ({job.kind}) differs: {outcome.answers} alone {alone.answers}")
    return faults


def untouched(reached: dict[str, dict[str, float]]) -> list[str]:
    """Returns what the soak was to bring about and did not: a run without preemptions or evictions shows nothing.
    reached: the highest value of each counter of each life, for those of an engine begin again when it is replaced."""
    names = ("preemptions", "kv_evictions", "tier_memory_hits", "guided_forced_tokens", "draft_tokens_accepted")
    return [
        f"there must be some {name}, there were none in any life"
        for name in names
        if not any(counters.get(f"tensorwright_{name}_total") for counters in reached.values())
    ]
