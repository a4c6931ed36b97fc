"""Draws a load test in SVG: percentiles as bars, and every request as a dot, with its TTFT over its arrival time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from tensorwright.runtime.serving.load_test.report import describe_limits
from tensorwright.runtime.serving.load_test.trace import Limits, Trace

WIDTH, LABEL, BAR, MARGIN = 1000, 130, 700, 16  # pixels: the picture, the names, the longest bar, the edge
ROW, GAP, DOTS = 20, 14, 260
SHADES = {"p50": "#9ecae1", "p90": "#4292c6", "p99": "#08519c"}
GOOD, MISSED, FAILED = "#2171b5", "#fdae6b", "#cb181d"
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "request": "e2e"}


def draw_load_test(result: dict[str, Any], traces: Sequence[Trace], limits: Limits, title: str) -> str:
    """Returns the picture as SVG text."""
    good = result["goodput"]
    under = describe_limits(good["limits"])
    summary = (
        f"{result['requests']['completed']} of {result['requests']['sent']} completed; "
        f"{result['per_second']['requests']:.2f} requests/s, {result['per_second']['output_tokens']:.1f} tokens/s; "
        f"goodput {good['per_second']:.2f} requests/s ({under})"
    )
    parts, y = [_text(MARGIN, 28, title, size=16, weight="bold"), _text(MARGIN, 48, summary, size=11)], 70
    for name, values in result["seconds"].items():
        if values is not None:
            parts += _bars(NAMES[name], values, y)
            y += ROW * len(SHADES) + GAP
    parts += _dots(traces, limits, y + 20)
    height = y + 20 + DOTS + 50
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _bars(name: str, values: dict[str, float], y: int) -> list[str]:
    """Draws one latency's percentiles. Each latency has its own scale: ITL and e2e differ by orders of magnitude."""
    longest = max(values[point] for point in SHADES) or 1.0
    parts = []
    for i, (point, shade) in enumerate(SHADES.items()):
        top, width = y + i * ROW, values[point] / longest * BAR
        parts += [
            _text(LABEL - 8, top + 14, f"{name} {point.upper()}", anchor="end"),
            f'<rect x="{LABEL}" y="{top + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{shade}"/>',
            _text(LABEL + width + 6, top + 14, f"{values[point] * 1e3:.2f} ms", size=11),
        ]
    return parts


def _dots(traces: Sequence[Trace], limits: Limits, y: int) -> list[str]:
    """Draws one dot for each request. Failed requests stand on the upper edge."""
    span = max(trace.scheduled for trace in traces) or 1.0
    first = [trace.ttft for trace in traces if trace.chunks]
    highest = max([*first, limits.ttft or 0.0]) * 1.05 or 1.0

    def at(seconds: float) -> float:
        return y + DOTS * (1 - seconds / highest)

    parts = [
        _text(MARGIN, y - 4, "TTFT of each request over its arrival", size=13, weight="bold"),
        f'<rect x="{LABEL}" y="{y}" width="{BAR}" height="{DOTS}" fill="none" stroke="#bbbbbb"/>',
        _text(LABEL - 8, y + 12, f"{highest:.3g} s", size=11, anchor="end"),
        _text(LABEL - 8, y + DOTS, "0", size=11, anchor="end"),
        _text(LABEL + BAR, y + DOTS + 16, f"{span:.3g} s", size=11, anchor="end"),
    ]
    if limits.ttft is not None:
        height = at(limits.ttft)
        parts.append(
            f'<line x1="{LABEL}" x2="{LABEL + BAR}" y1="{height:.1f}" y2="{height:.1f}" stroke="#666666" '
            'stroke-dasharray="4"/>'
        )
    for trace in traces:
        colour = FAILED if not trace.complete else GOOD if limits.met_by(trace) else MISSED
        x, height = LABEL + BAR * trace.scheduled / span, at(trace.ttft) if trace.complete else y
        parts.append(f'<circle cx="{x:.1f}" cy="{height:.1f}" r="4" fill="{colour}"/>')
    for i, (colour, text) in enumerate(((GOOD, "within the limits"), (MISSED, "beyond them"), (FAILED, "failed"))):
        parts.append(f'<rect x="{LABEL + 150 * i}" y="{y + DOTS + 24}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(LABEL + 150 * i + 18, y + DOTS + 34, text, size=11))
    return parts


def _text(x: float, y: float, text: str, *, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
