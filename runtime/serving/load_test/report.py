"""Computes the figures of a load test from its traces, and prints them as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from tensorwright.errors import LoadTestError
from tensorwright.options.bench import FIXED
from tensorwright.runtime.base.percentiles import PERCENTILES, distribution
from tensorwright.runtime.serving.load_test.settings import LoadSettings
from tensorwright.runtime.serving.load_test.trace import Limits, Trace, goodput

LATENCIES = ("ttft", "tpot", "itl", "request")


def summarise(traces: Sequence[Trace], limits: Limits) -> dict[str, Any]:
    """Returns all figures of the report. Latencies and rates count complete requests; the share of good requests is a
    share of all requests.

    The time of the rates lasts from the first arrival to the end of the last request, failed ones included. Raises
    LoadTestError if no request was completed.
    """
    complete = [trace for trace in traces if trace.complete]
    errors = count_errors(traces)
    if not complete:
        kinds = "; ".join(f"{e['count']} x {kind}: {e['first']}" for kind, e in errors.items())
        raise LoadTestError(f"at least one of {len(traces)} requests must be completed, none was ({kinds})")
    seconds = max(trace.end for trace in traces) - min(trace.scheduled for trace in traces)
    output = sum(trace.tokens for trace in complete)
    return {
        "requests": {"sent": len(traces), "completed": len(complete), "errors": errors},
        "duration": seconds,
        "seconds": {name: distribution(values) for name, values in latencies(complete).items()},
        "send_delay": distribution([trace.sent - trace.scheduled for trace in traces]),
        "per_second": {
            "requests": len(complete) / seconds,
            "input_tokens": sum(trace.prompt_tokens for trace in complete) / seconds,
            "output_tokens": output / seconds,
        },
        "tokens": {
            "counted_by": "usage" if all(trace.usage is not None for trace in complete) else "chunks",
            "input": sum(trace.prompt_tokens for trace in complete),
            "output": output,
            "output_asked_for": sum(trace.max_tokens for trace in complete),
            "per_chunk": output / sum(len(trace.chunks) for trace in complete),
        },
        "goodput": {"limits": asdict(limits), **goodput(traces, limits, seconds)},
    }


def latencies(complete: Sequence[Trace]) -> dict[str, list[float]]:
    """Returns the latencies in seconds, by name: to the first chunk (ttft), per token after it (tpot), between chunks
    (itl), and of whole requests (request)."""
    return {
        "ttft": [trace.ttft for trace in complete],
        "tpot": [trace.tpot for trace in complete if trace.tpot is not None],
        "itl": [gap for trace in complete for gap in trace.gaps],
        "request": [trace.whole for trace in complete],
    }


def count_errors(traces: Sequence[Trace]) -> dict[str, dict[str, Any]]:
    """Returns the errors by kind, the most frequent first: the count and the first message of each kind."""
    failed = [trace for trace in traces if trace.error is not None]
    counts = Counter(trace.error for trace in failed)
    return {
        str(kind): {"count": count, "first": next(trace.message for trace in failed if trace.error == kind)}
        for kind, count in counts.most_common()
    }


def describe_load(settings: LoadSettings) -> str:
    """Describes the load in words."""
    prompt, output = settings.lengths
    lengths = f"{prompt} + {output} tokens" if settings.profile == FIXED else f"{settings.profile} lengths"
    if settings.concurrency is not None:
        arrivals = f"{settings.concurrency} users"
    elif settings.arrival == "burst" and settings.rate is None:
        arrivals = "all at once"
    elif settings.arrival == "burst":
        arrivals = f"bursts of {settings.burst_size}, {settings.rate:g}/s"
    else:
        arrivals = f"Poisson arrivals, {settings.rate or 1.0:g}/s"
    return f"{settings.requests} requests, {lengths}, {arrivals}"


def show(result: dict[str, Any], heading: str) -> None:
    requests, tokens, good = result["requests"], result["tokens"], result["goodput"]
    click.echo(heading)
    click.echo(f"{requests['completed']} of {requests['sent']} completed in {result['duration']:.2f} s")
    for kind, error in requests["errors"].items():
        click.echo(f"  {error['count']} x {kind}: {error['first']}")
    click.echo(f"{'':20}{'mean':>12}" + "".join(f"{f'P{p}':>12}" for p in PERCENTILES))
    for name, values in [*result["seconds"].items(), ("send delay", result["send_delay"])]:
        if values is not None:
            label = name.upper() if name in LATENCIES[:3] else "e2e" if name == "request" else name
            click.echo(f"{label + ' ms':20}" + "".join(f"{value * 1e3:12.2f}" for value in values.values()))
    rates = ", ".join(f"{value:.2f} {name.replace('_', ' ')}/s" for name, value in result["per_second"].items())
    click.echo(f"throughput: {rates}")
    click.echo(
        f"goodput: {good['per_second']:.2f} requests/s, {good['share']:.1%} good ({describe_limits(good['limits'])})"
    )
    if tokens["output"] != tokens["output_asked_for"]:
        click.echo(f"{tokens['output']} tokens came of {tokens['output_asked_for']} that were asked for")
    if tokens["per_chunk"] > 1.05:
        click.echo(f"a chunk holds {tokens['per_chunk']:.2f} tokens in the mean: ITL is between chunks")


def describe_limits(limits: dict[str, float | None]) -> str:
    parts = []
    if limits["ttft"] is not None:
        parts.append(f"TTFT <= {limits['ttft']:g} s")
    if limits["itl"] is not None:
        parts.append(f"P{limits['itl_percentile']:g} of a request's ITL <= {limits['itl']:g} s")
    return ", ".join(parts) or "no limits"
