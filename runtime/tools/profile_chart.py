"""Draws a profile in SVG, which every browser shows, with one bar per op.

A bar is the time that the op took. Its dark part is the time that the op would take at the ceilings of the machine.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from tensorwright.runtime.tools.ceilings import Ceilings, describe
from tensorwright.runtime.tools.profile import OpSums, PhaseProfile

WIDTH, LABEL, BAR = 1000, 190, 440  # pixels: the widths of the picture, the names and the longest bar
ROW, GAP, MARGIN = 22, 46, 16
TAKEN, IDEAL = "#9ecae1", "#2171b5"


def draw_profile(phases: list[PhaseProfile], ceilings: Ceilings, title: str) -> str:
    """Returns the picture as SVG text."""
    parts = [_text(MARGIN, 28, title, size=16, weight="bold"), _text(MARGIN, 48, describe(ceilings), size=11)]
    parts += _legend(66)
    y = 92
    for phase in phases:
        head = f"{phase.phase}: {phase.steps} steps, {phase.tokens} tokens, {phase.seconds * 1e3:.1f} ms"
        parts.append(_text(MARGIN, y + 14, f"{head}, {phase.roofline:.0%} of the roofline", size=13, weight="bold"))
        y += 24
        for sums in phase.ops:
            parts += _bar(sums, phase, y)
            y += ROW
        y += GAP - ROW
    height = y + MARGIN
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _legend(y: int) -> list[str]:
    taken, ideal = MARGIN, MARGIN + 130
    return [
        _box(taken, y - 10, 12, 12, TAKEN),
        _text(taken + 18, y, "time taken", size=11),
        _box(ideal, y - 10, 12, 12, IDEAL),
        _text(ideal + 18, y, "time at the ceilings (the whole bar: at or above 100 %, from a cache)", size=11),
    ]


def _bar(sums: OpSums, phase: PhaseProfile, y: int) -> list[str]:
    scale = BAR / max(op.seconds for op in phase.ops) if phase.ops[0].seconds else 0.0
    width, ideal = sums.seconds * scale, min(sums.ideal_seconds, sums.seconds) * scale
    share = sums.seconds / phase.seconds if phase.seconds else 0.0
    figures = (
        f"{sums.seconds * 1e3:.2f} ms, {share:.1%}; {sums.bytes_per_second / 1e9:.1f} GB/s, "
        f"{sums.operations_per_second / 1e9:.0f} GOP/s, {sums.roofline:.0%}"
    )
    return [
        _text(LABEL - 8, y + 14, sums.op, anchor="end"),
        _box(LABEL, y + 3, width, ROW - 6, TAKEN),
        _box(LABEL, y + 3, ideal, ROW - 6, IDEAL),
        _text(LABEL + width + 6, y + 14, figures, size=11),
    ]


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'


def _text(x: float, y: float, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
