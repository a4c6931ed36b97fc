"""Draws docs/goodput.svg, the README's picture, from what benchmarks/serving.py measured (docs/measured/).

python docs/make_goodput.py            draws it
python docs/make_goodput.py --check    exits with 1 if the picture is not of these files
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
MEASURED, PICTURE = ROOT / "measured", ROOT / "goodput.svg"
PROFILES = ("chat", "code", "summarisation", "agent")
NAMES = {"tensorwright": "Tensorwright", "llama.cpp": "llama.cpp's server", "openvino-genai": "OpenVINO GenAI"}
COLOURS = {"tensorwright": "#2f6f8f", "llama.cpp": "#b9a16b", "openvino-genai": "#a0a7ad"}
WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 720, 250, 70, 20, 16, 64


def reports() -> dict[str, dict[str, Any]]:
    """The measured runs by their profiles, in the order of the picture."""
    found = {name: MEASURED / f"serving-{name}.json" for name in PROFILES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in found.items() if path.exists()}


def rows(report: dict[str, Any]) -> list[tuple[str, str, float]]:
    """The sides of one run: peer, name with form, and the highest rate that it held."""
    sides = report["sides"].values()
    return [(side["peer"], f"{NAMES[side['peer']]}, {side['form']}", side["best_rate"] or 0.0) for side in sides]


def draw(runs: dict[str, dict[str, Any]]) -> str:
    """Returns the picture: a group of bars for each profile, to one scale."""
    most = max(rate for report in runs.values() for _, _, rate in rows(report))
    scale = (WIDTH - LEFT - RIGHT) / most
    first = next(iter(runs.values()))
    parts, y = [], TOP
    for profile, report in runs.items():
        parts.append(f'<text x="16" y="{y + 15}" font-weight="bold">{profile}</text>')
        for peer, name, rate in rows(report):
            label = f"{rate:.2g}" if rate else "none found"
            parts.append(
                f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
                f'<rect x="{LEFT}" y="{y + 2}" width="{max(rate * scale, 1):.1f}" height="{BAR - 4}" '
                f'fill="{COLOURS[peer]}"/>'
                f'<text x="{LEFT + max(rate * scale, 1) + 6:.1f}" y="{y + 15}">{label}</text>'
            )
            y += BAR
        y += GAP
    machine = f"{first['machine']['cpu']}, {first['threads']} threads, {first['date']}"
    title = f"Requests per second of which {first['share']:.0%} are in time"
    note = f"{first['shape']}, random weights of 4 bits; {machine}; more is better"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
        f'role="img" aria-label="{escape(title)}" font-family="sans-serif" font-size="13" fill="#20262b">'
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>'
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>'
        f'<text x="16" y="46" fill="#5a646b">{escape(note)}</text>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def main() -> int:
    picture = draw(reports())
    if "--check" in sys.argv[1:]:
        if not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture:
            print(f"{PICTURE.name} is not of these files: python docs/make_goodput.py", file=sys.stderr)
            return 1
        return 0
    PICTURE.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
