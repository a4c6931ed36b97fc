"""Writes deploy/grafana/tensorwright.json, a Grafana dashboard over the server's metrics: python make_dashboard.py

Import the JSON in Grafana (Dashboards, New, Import) and choose the Prometheus that collects /metrics. ROWS declares
what it shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tensorwright.json")
COLUMNS, HEIGHT, PANELS_OF_A_ROW = 24, 8, 3
RATE = "[$__rate_interval]"
CHOSEN = '{model=~"$model", instance=~"$instance"}'
OF_HTTP = '{instance=~"$instance"}'


@dataclass(frozen=True)
class Panel:
    """One chart. lines: PromQL by legend. unit: Grafana's name of it. most: the end of the axis, where there is one."""

    title: str
    unit: str
    lines: dict[str, str]
    about: str = ""
    most: float | None = None


def total(name: str, by: str = "model") -> str:
    return f"sum by ({by}) (tensorwright_{name}{CHOSEN})"


def rate(name: str, by: str = "model") -> str:
    return f"sum by ({by}) (rate(tensorwright_{name}{CHOSEN}{RATE}))"


def quantiles(name: str) -> dict[str, str]:
    return {
        f"{{{{model}}}} p{percent}": f"histogram_quantile({percent / 100}, {rate(f'{name}_bucket', 'model, le')})"
        for percent in (50, 90, 99)
    }


ROWS: dict[str, tuple[Panel, ...]] = {
    "What users feel": (
        Panel("Time to first token", "s", quantiles("time_to_first_token_seconds"), "From arrival to the first token."),
        Panel("Time between tokens", "s", quantiles("inter_token_seconds"), "Between two tokens of a completion."),
        Panel("Time of a request", "s", quantiles("request_seconds"), "From arrival to the last token."),
    ),
    "Load": (
        Panel(
            "Tokens", "short",
            {"{{model}} generated": rate("generated_tokens_total"), "{{model}} prompts": rate("prefill_tokens_total")},
            "Tokens per second that were sampled, and prompt tokens that were computed.",
        ),
        Panel(
            "Requests under way", "short",
            {"{{model}} running": total("requests_running"), "{{model}} waiting": total("requests_waiting")},
        ),
        Panel("Wait for the first step", "s", quantiles("queue_seconds")),
        Panel("Steps per second", "short", {"{{model}}": rate("steps_total")}),
        Panel(
            "Tokens of a step", "short",
            {"{{model}}": f"({rate('prefill_tokens_total')} + {rate('decode_tokens_total')}) / {rate('steps_total')}"},
        ),
        Panel(
            "Lengths, mean", "short",
            {
                "{{model}} prompt": f"{rate('prompt_tokens_sum')} / {rate('prompt_tokens_count')}",
                "{{model}} output": f"{rate('output_tokens_sum')} / {rate('output_tokens_count')}",
            },
        ),
    ),
    "KV cache": (
        Panel(
            "Blocks in use", "percentunit", {"{{model}} window {{window}}": total("kv_usage_ratio", "model, window")},
            "Share of the blocks that requests use; the rest is free or kept for later prompts.", 1,
        ),
        Panel(
            "Prefix hits", "percentunit",
            {"{{model}}": f"{rate('prefix_hit_tokens_total')} / {rate('prefix_lookup_tokens_total')}"},
            "Share of the looked-up prompt tokens that the prefix cache had.", 1,
        ),
        Panel(
            "Preemptions and evictions", "short",
            {"{{model}} preemptions": rate("preemptions_total"), "{{model}} evictions": rate("kv_evictions_total")},
            "Per second. Preempted sequences are computed again: more memory for the cache, or fewer at once.",
        ),
    ),
    "Faults and speculation": (
        Panel(
            "Requests that failed", "short",
            {"{{error}}": rate("request_errors_total", "error"), "{{outcome}}": rate("completions_total", "outcome")},
            "Per second, by error, and all that ended, by outcome.",
        ),
        Panel(
            "Engines", "short", {"{{model}} up": total("engine_up"), "{{model}} stalled s": total("stalled_seconds")},
        ),
        Panel(
            "Proposed tokens that were right", "percentunit",
            {"{{model}}": f"{rate('draft_tokens_accepted_total')} / {rate('draft_tokens_total')}"}, "", 1,
        ),
    ),
    "HTTP": (
        Panel(
            "Answers by status", "short",
            {"{{status}}": f"sum by (status) (rate(tensorwright_http_requests_total{OF_HTTP}{RATE}))"}, "Per second.",
        ),
        Panel(
            "Requests and connections", "short",
            {
                "requests": f"sum(tensorwright_http_requests_in_flight{OF_HTTP})",
                "connections {{state}}": f"sum by (state) (tensorwright_http_connections{OF_HTTP})",
            },
        ),
        Panel(
            "Closed early", "short",
            {"{{reason}}": f"sum by (reason) (rate(tensorwright_http_connections_closed_total{OF_HTTP}{RATE}))"},
            "Connections per second, by reason.",
        ),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Returns the dashboard in Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        panels.append({"type": "row", "id": len(panels) + 1, "title": title, "collapsed": False, "gridPos": place})
        top += 1
        width = COLUMNS // PANELS_OF_A_ROW
        for number, panel in enumerate(row):
            x, y = number % PANELS_OF_A_ROW * width, top + number // PANELS_OF_A_ROW * HEIGHT
            panels.append(_panel(panel, len(panels) + 1, {"h": HEIGHT, "w": width, "x": x, "y": y}))
        top += -(-len(row) // PANELS_OF_A_ROW) * HEIGHT
    return {
        "title": "Tensorwright", "uid": "tensorwright", "tags": ["tensorwright"], "schemaVersion": 39, "editable": True,
        "time": {"from": "now-1h", "to": "now"}, "refresh": "10s", "panels": panels,
        "templating": {"list": [
            {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            _choice("model", "tensorwright_engine_up"), _choice("instance", "tensorwright_http_requests_in_flight"),
        ]},
    }  # fmt: skip


def _choice(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": f"label_values({metric}, {label})", "refresh": 2, "includeAll": True, "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    limits = {"min": 0} if panel.most is None else {"min": 0, "max": panel.most}
    return {
        "type": "timeseries", "id": number, "title": panel.title, "description": panel.about, "datasource": source,
        "gridPos": place, "fieldConfig": {"defaults": {"unit": panel.unit, **limits}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": source}
            for at, (legend, expression) in enumerate(panel.lines.items())
        ],
    }  # fmt: skip


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
