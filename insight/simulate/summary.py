"""Sums up a simulated run: goodput, latencies, prefix hits, preemptions, queue, KV use, and fairness."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tensorwright.insight.simulate.run_fleet import FleetRun
from tensorwright.runtime.base.percentiles import PERCENTILES, distribution


@dataclass(frozen=True)
class Goals:
    """What makes a request good. ttft, itl: seconds, None for no limit. itl_percentile: of the times between a
    request's tokens that must be within itl."""

    ttft: float | None = None
    itl: float | None = None
    itl_percentile: float = 99.0


def good_requests(run: FleetRun, goals: Goals) -> np.ndarray:
    """Returns whether each request ended within the goals, bool [requests]. The run's gap_percentile must be that of
    the goals."""
    good = run.ended >= 0
    if goals.ttft is not None:
        good &= run.first - run.traffic.arrivals <= goals.ttft * 1e9
    if goals.itl is not None:
        good &= run.gap <= goals.itl
    return good


def summarise(run: FleetRun, goals: Goals) -> dict[str, Any]:
    """Returns the figures of a run. Times are seconds, of the simulation's clock. Latencies are those of the requests
    that ended; the share of good requests is a share of all. Rates count from the first arrival to the last end."""
    done = run.ended >= 0
    arrivals = run.traffic.arrivals[done]
    good = good_requests(run, goals)
    # If all were refused, nothing took any time; a nanosecond keeps the rates finite.
    seconds = max(1, int(run.ended.max(initial=0) - run.traffic.arrivals[0])) * 1e-9
    ttft, whole = (run.first[done] - arrivals) * 1e-9, (run.ended[done] - arrivals) * 1e-9
    total = {name: sum(replica[name] for replica in run.replicas) for name in _SUMS}
    busy = np.array([replica["busy_s"] for replica in run.replicas])
    looked_up = total["prefix_lookup_tokens"]
    return {
        "requests": {
            "sent": len(run.traffic),
            "ended": int(done.sum()),
            "refused": int((run.replica < 0).sum()),
            "late": int(run.late.sum()),
        },
        "duration": seconds,
        "seconds": {
            "ttft": _spread(ttft),
            "itl": _spread_of_gaps(run.gaps),
            "request": _spread(whole),
            "queue": _spread((run.started[done] - arrivals) * 1e-9),
        },
        "per_second": {
            "requests": int(done.sum()) / seconds,
            "input_tokens": int(run.traffic.prompts[done].sum()) / seconds,
            "output_tokens": int(run.generated.sum()) / seconds,
        },
        "goodput": {"share": float(good.mean()), "per_second": int(good.sum()) / seconds},
        "prefix_hit_rate": total["prefix_hit_tokens"] / looked_up if looked_up else 0.0,
        "preemptions": total["preemptions"],
        "steps": total["steps"],
        "busy": {"mean": float(busy.mean()) / seconds, "least": float(busy.min()) / seconds},
        "queue": {"mean": _mean(run, "mean_waiting", busy), "max": _most(run, "max_waiting")},
        "running": _mean(run, "mean_running", busy),
        "kv_used": {"mean": _mean(run, "mean_kv_used", busy), "max": _most(run, "max_kv_used")},
        "fairness": fairness(run),
        "tenants": of_tenants(run, good, seconds),
    }


_SUMS = ("steps", "preemptions", "prefix_lookup_tokens", "prefix_hit_tokens")


def of_tenants(run: FleetRun, good: np.ndarray, seconds: float) -> list[dict[str, Any]]:
    """Returns the figures of each tenant, in their order. good: of each request. seconds: of the whole run.

    late: requests that ended because they could not meet their deadline. good: the share of the tenant's requests;
    None for a tenant that sent nothing. Times are seconds, of requests that ended.
    """
    done, arrivals, tenants = run.ended >= 0, run.traffic.arrivals, run.traffic.tenants
    figures = []
    for number, tenant in enumerate(run.traffic.known):
        own = tenants == number
        ended = own & done
        figures.append(
            {
                **asdict(tenant),
                "sent": int(own.sum()),
                "ended": int(ended.sum()),
                "refused": int((own & (run.replica < 0)).sum()),
                "late": int(run.late[own].sum()),
                "good": float(good[own].mean()) if own.any() else None,
                "output_tokens_per_second": int(run.generated[own].sum()) / seconds,
                "seconds": {
                    "ttft": _spread((run.first[ended] - arrivals[ended]) * 1e-9),
                    "request": _spread((run.ended[ended] - arrivals[ended]) * 1e-9),
                    "queue": _spread((run.started[ended] - arrivals[ended]) * 1e-9),
                },
            }
        )
    return figures


def fairness(run: FleetRun) -> dict[str, Any]:
    """Returns how alike tenants are treated, by their mean seconds per generated token, from arrival to end.

    jain: the index of Jain, Chiu and Hawe (1984) over these, 1 if all are the same. worst_over_best: their ratio.
    """
    done = np.flatnonzero(run.ended >= 0)
    per_token = (run.ended[done] - run.traffic.arrivals[done]) * 1e-9 / run.generated[done]
    tenants = run.traffic.tenants[done]
    counts = np.bincount(tenants)
    means = np.bincount(tenants, per_token)[counts > 0] / counts[counts > 0]
    if len(means) == 0:
        return {"tenants": 0, "jain": 1.0, "worst_over_best": 1.0}
    jain = float(means.sum() ** 2 / (len(means) * (means**2).sum()))
    return {"tenants": len(means), "jain": jain, "worst_over_best": float(means.max() / means.min())}


def _spread(seconds: np.ndarray) -> dict[str, float] | None:
    return distribution(seconds.tolist())


def _spread_of_gaps(gaps: dict[str, Any]) -> dict[str, float] | None:
    """Returns mean and percentiles of counted bins; a percentile is the middle of its bin, 0.25 % off at most."""
    if not gaps["count"]:
        return None
    reached = np.cumsum(gaps["counts"])
    places = {p: np.searchsorted(reached, p / 100 * (gaps["count"] - 1), side="right") for p in PERCENTILES}
    return {"mean": gaps["sum"] / gaps["count"]} | {f"p{p}": float(gaps["seconds"][i]) for p, i in places.items()}


def _mean(run: FleetRun, name: str, busy: np.ndarray) -> float:
    """Returns the mean over the time in which replicas computed."""
    values = np.array([replica[name] for replica in run.replicas])
    return float((values * busy).sum() / max(busy.sum(), 1e-12))


def _most(run: FleetRun, name: str) -> float:
    return max(replica[name] for replica in run.replicas)
