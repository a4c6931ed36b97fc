"""Draws the figures as bars: one panel per case, one bar per side. Plain SVG, no library."""

from __future__ import annotations

from html import escape
from typing import Any

from environments import MODULES
from report import medians, number

COLOURS = dict(zip(MODULES, ("#c2410c", "#1d4ed8", "#0f766e", "#7e22ce", "#6b7280"), strict=True))
WIDTH, LABEL, VALUE, BAR, GAP, TITLE = 760, 210, 70, 16, 5, 34


def panel(case: str, row: dict[str, float], peers: dict[str, str], top: int) -> list[str]:
    """Draws one case: its title and a bar for each side, the longest as wide as the space allows."""
    longest = max(row.values())
    parts = [f'<text x="8" y="{top + 22}" font-weight="bold">{escape(case)} (tokens per second)</text>']
    for i, (side, value) in enumerate(row.items()):
        y = top + TITLE + i * (BAR + GAP)
        width = (WIDTH - LABEL - VALUE) * value / longest
        parts += [
            f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{escape(side)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[peers[side]]}"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{y + 12}">{number(value)}</text>',
        ]
    return parts


def svg(report: dict[str, Any]) -> str:
    peers = {side: facts["peer"] for side, facts in report["sides"].items()}
    heading = f"{report['shape']}, {report['threads']} threads, {report['machine']['cpu']}"
    parts, top = [f'<text x="8" y="18">{escape(heading)}</text>'], 20
    for case, row in medians(report).items():
        known = {side: value for side, value in row.items() if side in peers}
        if known:
            parts += panel(case, known, peers, top)
            top += TITLE + len(known) * (BAR + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 10}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
