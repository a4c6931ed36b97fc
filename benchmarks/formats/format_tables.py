"""Writes what was measured as the tables of docs/quantization.md, between their markers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from format_rows import BASE, FORMATS, METHODS, REFERENCE
from format_speeds import CONTEXT, PROMPT, STEPS

HEAD = (
    "format", "bits per weight", "size, MB", "perplexity", "against bfloat16", "KL divergence", "same top token",
    "build, s", "decode, tokens/s", "prefill, tokens/s",
)  # fmt: skip
TABLES = {"formats": FORMATS, "methods": METHODS}
MARKED = re.compile(r"<!-- measured (?P<name>\w+) -->\n.*?<!-- end of measured \w+ -->", re.DOTALL)


def table(record: dict[str, Any], names: Iterable[str]) -> str:
    """Returns the rows that were measured, in the order of `names`."""
    rows = record["rows"]
    elements = rows[REFERENCE]["built"]["bytes"] / 4
    base = rows[BASE]["accuracy"]["perplexity"]
    done = [name for name in names if "accuracy" in rows.get(name, {})]
    lines = [_row(name, rows[name], elements, base) for name in done]
    return "\n".join([f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *lines])


def _row(name: str, row: dict[str, Any], elements: float, base: float) -> str:
    built, accuracy, speeds = row["built"], row["accuracy"], row.get("speeds", {})
    cells = [
        f"`{name}`",
        f"{8 * built['bytes'] / elements:.2f}",
        f"{built['bytes'] / 1e6:.1f}",
        f"{accuracy['perplexity']:.3f}",
        f"{100 * (accuracy['perplexity'] / base - 1):+.2f} %",
        f"{accuracy['kl_divergence']:.2g}",
        f"{100 * accuracy['top1_agreement']:.1f} %",
        f"{built['seconds']:.0f}",
        *(f"{max(speeds[kind]):.0f}" if speeds.get(kind) else "-" for kind in ("decode", "prefill")),
    ]
    return f"| {' | '.join(cells)} |"


def notes(record: dict[str, Any]) -> str:
    """Returns the sentence that says how it was measured."""
    machine = record["machine"]
    rounds = [len(row["speeds"]["decode"]) for row in record["rows"].values() if "speeds" in row]
    text = (
        f"{record['windows']} windows of {record['window']} tokens. Build: processor seconds. Decode: one sequence, "
        f"{STEPS} tokens after {CONTEXT}; prefill: a prompt of {PROMPT} tokens"
    )
    if rounds:
        text += f"; the best of {min(rounds)} rounds, all rows in turn, on {machine['cpu']}, {machine['cores']} cores"
    return text + "."


def written(page: str, record: dict[str, Any]) -> str:
    """Returns the text of a page with the tables of `record` between its markers."""

    def new(old: re.Match[str]) -> str:
        name = old["name"]
        body = notes(record) + "\n\n" + table(record, TABLES[name])
        return f"<!-- measured {name} -->\n{body}\n<!-- end of measured {name} -->"

    found = [match["name"] for match in MARKED.finditer(page)]
    if sorted(found) != sorted(TABLES):
        there = ", ".join(found) or "none"
        raise SystemExit(f"the page must have markers of the tables {', '.join(TABLES)}, has {there}")
    return MARKED.sub(new, page)
