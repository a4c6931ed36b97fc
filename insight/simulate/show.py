"""Shows a simulation: as text for people, and as plain data for --json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tensorwright.insight.simulate.find_replicas import Found
from tensorwright.insight.simulate.simulate import Simulation
from tensorwright.runtime.base.percentiles import PERCENTILES
from tensorwright.runtime.serving.load_test.report import describe_limits
from tensorwright.sizes import format_size

SHOWN_TENANTS = 20
LATENCIES = {"ttft": "TTFT ms", "itl": "ITL ms", "request": "e2e ms", "queue": "in the queue ms"}


def as_dict(done: Simulation) -> dict[str, Any]:
    """Returns the simulation as plain data. Times are seconds."""
    return {
        "replica": asdict(done.shape),
        "costs": asdict(done.costs),
        "fleet": {"replicas": done.replicas, "router": done.router},
        "goals": asdict(done.goals),
        "found": None if done.found is None else {"replicas": done.found.replicas, "tried": done.found.tried},
        "result": done.summary,
        "wall_seconds": done.wall_seconds,
    }


def lines_of(done: Simulation) -> list[str]:
    """Returns the simulation as lines of text."""
    result, shape = done.summary, done.shape
    requests = result["requests"]
    lines = [
        f"{_count(done.replicas)} with {shape.max_batch_size} sequences at once and "
        f"{format_size(shape.kv_cache_bytes)} of KV cache, routed by {done.router}",
        f"{requests['ended']} of {requests['sent']} requests ended in {result['duration']:.2f} s, "
        f"{requests['refused']} were refused by full queues, {requests['late']} could not meet their deadlines",
        f"{'':20}{'mean':>12}" + "".join(f"{f'P{p}':>12}" for p in PERCENTILES),
    ]
    for key, name in LATENCIES.items():
        values = result["seconds"][key]
        if values is not None:
            lines.append(f"{name:20}" + "".join(f"{value * 1e3:12.2f}" for value in values.values()))
    lines += _rates(result, done)
    lines += _tenants(result["tenants"])
    if done.found is not None:
        lines.append(found_in_words(done.found))
    lines.append(f"costs: {done.costs.source}; a step is {done.costs.error:.1%} off in the mean")
    lines.append(f"simulated in {done.wall_seconds:.1f} s")
    return lines


def _rates(result: dict[str, Any], done: Simulation) -> list[str]:
    good, busy, queue, kv = result["goodput"], result["busy"], result["queue"], result["kv_used"]
    rates = ", ".join(f"{value:.2f} {name.replace('_', ' ')}/s" for name, value in result["per_second"].items())
    lines = [
        f"throughput: {rates}",
        f"goodput: {good['per_second']:.2f} requests/s, {good['share']:.1%} good "
        f"({describe_limits(asdict(done.goals))})",
        f"replicas: {busy['mean']:.1%} of the time busy, the least busy {busy['least']:.1%}; while busy "
        f"{result['running']:.1f} sequences ran and {queue['mean']:.1f} waited, at most {queue['max']:.0f}",
        f"KV cache: {kv['mean']:.1%} used while busy, at most {kv['max']:.1%}; {result['preemptions']} preemptions; "
        f"{result['prefix_hit_rate']:.1%} of the tokens that were looked up came from the prefix cache",
    ]
    fair = result["fairness"]
    if fair["tenants"] > 1:
        lines.append(
            f"fairness: seconds per token of {fair['tenants']} tenants have a Jain index of {fair['jain']:.3f}; the "
            f"worst is {fair['worst_over_best']:.2f} times the best"
        )
    return lines


def _tenants(tenants: list[dict[str, Any]]) -> list[str]:
    """Returns a table of the tenants, if there are several."""
    if len(tenants) < 2:
        return []
    titles = ("share", "weight", "priority", "sent", "late", "refused", "good", "TTFT P50 s", "TTFT P99 s", "tokens/s")
    lines = [f"{'tenant':20}" + "".join(f"{title:>12}" for title in titles)]
    for each in tenants[:SHOWN_TENANTS]:
        ttft = each["seconds"]["ttft"] or {}
        values = (
            f"{each['share']:.3g}", f"{each['weight']:g}", each["priority"], each["sent"], each["late"],
            each["refused"], "" if each["good"] is None else f"{each['good']:.1%}",
            *("" if name not in ttft else f"{ttft[name]:.3f}" for name in ("p50", "p99")),
            f"{each['output_tokens_per_second']:.1f}",
        )  # fmt: skip
        lines.append(f"{each['name'][:19]:20}" + "".join(f"{value!s:>12}" for value in values))
    if len(tenants) > SHOWN_TENANTS:
        lines.append(f"and {len(tenants) - SHOWN_TENANTS} tenants more, which --json has")
    return lines


def found_in_words(found: Found) -> str:
    """Returns the answer of a search in one sentence."""
    tried = ", ".join(f"{replicas}: {share:.1%}" for replicas, share in sorted(found.tried.items()))
    if found.replicas is None:
        return f"not even {_count(max(found.tried))} would meet the goals (good requests by replicas: {tried})"
    verb = "meets" if found.replicas == 1 else "meet"
    return f"{_count(found.replicas)} {verb} the goals (good requests by replicas: {tried})"


def _count(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"
