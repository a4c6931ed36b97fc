"""Writes a run of benchmarks/serving.py as a page of Markdown."""

from __future__ import annotations

from statistics import median
from typing import Any

from environments import OURS
from report import number, table


def highest(facts: dict[str, Any], name: str) -> float | None:
    """Returns the median of the confirming trials at the side's best rate."""
    values = [trial[name] for trial in facts["confirmed"]]
    return median(values) if values else None


def ratio_to_best(report: dict[str, Any]) -> float | None:
    """Returns the goodput of our best side over that of the best other side."""
    values = {side: highest(facts, "goodput") for side, facts in report["sides"].items()}
    ours = [v for side, v in values.items() if v is not None and report["sides"][side]["peer"] == OURS]
    others = [v for side, v in values.items() if v is not None and report["sides"][side]["peer"] != OURS]
    return max(ours) / max(others) if ours and others and max(others) > 0 else None


def markdown(report: dict[str, Any]) -> str:
    load = report["load"]
    limits = (
        f"TTFT <= {load['ttft_limit']:g} s, P{load['itl_percentile']:g} of a request's ITL <= {load['itl_limit']:g} s"
    )
    parts = [
        f"## Serving {report['shape']}, random weights, {report['threads']} threads\n\n"
        f"{report['machine']['cpu']}, {report['machine']['cores']} cores; {report['date']}; sides interleaved, trial "
        f"by trial.\n{load['profile']} lengths, at most {load['input_len']} + {load['output_len']} tokens, Poisson "
        f"arrivals; good: {limits}.\nEach side: the highest rate whose share of good requests is at least "
        f"{report['share']:.0%}; medians of {report['confirm']} trial(s) at that rate.\n{_notes(report)}\n",
        _speed(report),
    ]
    ratio = ratio_to_best(report)
    if ratio is not None:
        parts.append(f"Goodput, {OURS} / best of the others: **{ratio:.2f}**\n")
    parts.append(_trials(report))
    if report["failed"]:
        parts.append(
            "Not measured, or not to the end:\n\n" + "".join(f"* {k}: {v}\n" for k, v in report["failed"].items())
        )
    return "\n".join(parts)


def _notes(report: dict[str, Any]) -> str:
    busy = ", ".join(f"{i['busy']:.1%}" for i in report["idleness"])
    notes = f"Busy before each round: {busy}."
    if report["forced"]:
        notes = "**The machine was not idle (--force): not for quoting.** " + notes
    if report["capacity"].get("prefix_gib"):
        notes += f" Every side kept prefixes, the peers in {report['capacity']['prefix_gib']} GiB."
    if report["ended_early"]:
        notes += " The search ended early: --budget or --trials was used up."
    return notes


def _speed(report: dict[str, Any]) -> str:
    head = ["", "highest rate, req/s", "goodput, req/s", "share good", "output tokens/s", "TTFT P50 / P99, s",
            "ITL P50 / P99, ms"]  # fmt: skip
    rows = []
    for side, facts in report["sides"].items():
        if not facts["confirmed"]:
            rows.append([side, "none found", *["-"] * 5])
            continue
        share = highest(facts, "share")
        ttft = f"{number(highest(facts, 'ttft_p50'))} / {number(highest(facts, 'ttft_p99'))}"
        itl = f"{number(highest(facts, 'itl_p50'), 1e-3)} / {number(highest(facts, 'itl_p99'), 1e-3)}"
        rows.append([side, number(facts["best_rate"]), number(highest(facts, "goodput")), f"{share:.0%}",
                     number(highest(facts, "output_tokens")), ttft, itl])  # fmt: skip
    return table(head, rows)


def _trials(report: dict[str, Any]) -> str:
    lines = []
    for side, facts in report["sides"].items():
        tried = ", ".join(f"{trial['rate']:.3g}: {trial['share']:.0%}" for trial in facts["trials"])
        lines.append(f"* {side}: {tried}\n")
    return "Every trial of the search, requests per second: share of good ones\n\n" + "".join(lines)
