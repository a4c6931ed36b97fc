"""Turns a run's figures into medians, ratios and a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from environments import OURS

DECODE = "decode, batch 1"


def medians(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Returns tokens per second by case and side."""
    return {case: {side: median(v) for side, v in row.items()} for case, row in report["rows"].items()}


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the median of the ratios of each round, in which drift of the machine cancels out."""
    return median(a / b for a, b in zip(ours, theirs, strict=False))


def ratios(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Returns "ours / theirs" -> case -> ratio, for sides whose weights have about as many bits."""
    facts = report["sides"]
    found: dict[str, dict[str, float]] = {}
    for ours in [s for s in facts if facts[s]["peer"] == OURS]:
        for theirs in [s for s in facts if facts[s]["peer"] != OURS and facts[s]["bits"] == facts[ours]["bits"]]:
            for case, row in report["rows"].items():
                if ours in row and theirs in row:
                    found.setdefault(f"{ours} / {theirs}", {})[case] = paired_ratio(row[ours], row[theirs])
    return found


def agreement(tokens: Sequence[int], reference: Sequence[int]) -> str:
    return f"{sum(a == b for a, b in zip(tokens, reference, strict=True))}/{len(reference)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def number(value: float | None, scale: float = 1.0) -> str:
    """Formats a number with three figures, or with all figures before the point."""
    if value is None:
        return "-"
    value /= scale
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def markdown(report: dict[str, Any]) -> str:
    """Returns the whole page."""
    parts = [_heading(report), _speed(report), _ratios(report), _facts(report)]
    out = {**report["refused"], **report["failed"]}
    if out:
        parts.append("Not measured, or not to the end:\n\n" + "".join(f"* {k}: {v}\n" for k, v in out.items()))
    return "\n".join(parts)


def _heading(report: dict[str, Any]) -> str:
    ceilings = report["ceilings"]
    limits = ", ".join(f"{k} {number(median(c[k] for c in ceilings))}" for k in ceilings[0])
    single = ", ".join(f"{k} {number(v)}" for k, v in report["ceilings_one_thread"].items())
    busy = ", ".join(f"{i['busy']:.1%}" for i in report["idleness"])
    others = max((x for row in report["others"].values() for v in row.values() for x in v), default=0.0)
    notes = f"Busy before each round: {busy}; most that others took during a job: {others:.1%}."
    if report["forced"]:
        notes = "**The machine was not idle (--force): not for quoting.** " + notes
    return (
        f"## {report['shape']}, random weights, {report['threads']} threads\n\n"
        f"{report['machine']['cpu']}, {report['machine']['cores']} cores; {report['date']}; one interleaved run, "
        f"medians of {report['rounds']}.\nCeilings in the same run: {limits} (one thread: {single}).\n{notes}\n"
    )


def _speed(report: dict[str, Any]) -> str:
    values = medians(report)
    rows = [[side, *(number(row.get(side)) for row in values.values())] for side in report["sides"]]
    return table(["tokens per second", *values], rows)


def _ratios(report: dict[str, Any]) -> str:
    found = ratios(report)
    if not found:
        return ""
    names = list(report["rows"])
    rows = [[pair, *(f"{r[c]:.2f}" if c in r else "-" for c in names)] for pair, r in found.items()]
    return table(["ratio, paired by round", *names], rows)


def read_share(report: dict[str, Any], side: str) -> float | None:
    """Returns which part of the read ceiling the weights of one token per step take."""
    rates = medians(report).get(DECODE, {})
    if side not in rates:
        return None
    ceiling = median(c["read GB/s"] for c in report["ceilings"]) * 1e9
    return rates[side] * report["sides"][side]["bytes_per_token"] / ceiling


def _facts(report: dict[str, Any]) -> str:
    head = ["", "convert, s", "load, s", "files, MB", "weights read per token, MB", "of the read ceiling at batch 1",
            "peak memory, MB", "first tokens as transformers' bf16"]  # fmt: skip
    rows = []
    for side, facts in report["sides"].items():
        share = read_share(report, side)
        convert = number(facts["convert_seconds"]) + (" (earlier)" if facts["converted_earlier"] else "")
        rows.append([side, convert, number(facts["load_seconds"]), number(facts["file_bytes"], 1e6),
                     number(facts["bytes_per_token"], 1e6), "-" if share is None else f"{share:.0%}",
                     number(facts["peak_bytes"], 1e6), facts["agreement"]])  # fmt: skip
    return table(head, rows) + (
        "\nconvert: from the checkpoint on disk to its files, (earlier): in another run, on a busy machine maybe."
        " load: until ready, imports included, files in the page cache. Weights read per token leave out an embedding"
        " that is no head.\n"
    )
