"""Makes the page of a report: one HTML file that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from tensorwright import __version__
from tensorwright.insight.explain.finding import Finding, Status
from tensorwright.insight.explain.show import worth_text
from tensorwright.insight.report import plots
from tensorwright.insight.report.collect import AT_ONCE, PassRow, ReportData, chunk_tokens
from tensorwright.insight.report.graph_tree import tree_html
from tensorwright.sizes import format_size

TEMPLATE = Path(__file__).with_name("page.html")
STYLES = {
    Status.DONE: "done",
    Status.LOSSY: "lossy",
    Status.MISSED: "missed",
    Status.OFFERED: "",
    Status.NOT_HERE: "dim",
    Status.NOT_APPLICABLE: "dim",
}
SECTIONS = (
    ("engine", "Engine"),
    ("next", "Optimizations"),
    ("roofline", "Roofline"),
    ("predicted", "Estimate"),
    ("timeline", "Timeline"),
    ("memory", "Memory"),
    ("accuracy", "Accuracy"),
    ("passes", "Passes"),
    ("graph", "Graph"),
)


def render(data: ReportData) -> str:
    """Returns the page."""
    script, places = plots.draw(data)
    present = [(name, title) for name, title in SECTIONS if name in places or name not in plots_of_sections()]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return page.render(
        title=f"{data.facts['model'].get('model_type') or 'model'} on target {data.engine.target}",
        subtitle=f"Report of {data.facts['path']}, made {data.made} by tensorwright {__version__}.",
        bokeh=Markup(plots.script()) if places else "",
        script=Markup(script),
        sections=present,
        places={name: Markup(places.get(name, "")) for name in plots_of_sections()},
        head=_head(data),
        next=[{"name": finding.name, "worth": worth_text(finding.worth)} for finding in data.explanation.next],
        findings=[_finding(finding) for finding in data.explanation.findings],
        device=f"{data.device.name[:1].upper()}{data.device.name[1:]}: {data.device.source}",
        run=None if data.run is None else {"tokens": data.run.tokens, "seconds": data.run.seconds},
        run_text=_run_text(data),
        accuracy_of_estimate=_estimate_text(data),
        memory_text=_memory_text(data),
        accuracy=_accuracy(data),
        formats=_formats(data),
        passes=[_pass(row) for row in data.passes],
        before=None if data.before is None else Markup(tree_html(data.before)),
        after=Markup(tree_html(data.after)),
    )


def plots_of_sections() -> tuple[str, ...]:
    """Returns the names of the sections that show a plot; without it all but "accuracy" are left out."""
    return ("roofline", "predicted", "timeline", "memory", "accuracy")


def _head(data: ReportData) -> list[tuple[str, str]]:
    facts = data.facts
    model = {name: value for name, value in facts["model"].items() if name not in ("left_out",) and value is not None}
    return [
        ("engine", facts["path"]),
        ("target", facts["target"]),
        ("type", facts["dtype"]),
        ("KV cache", facts["cache_dtype"]),
        ("size", format_size(facts["total_bytes"])),
        ("built by", f"tensorwright {facts['tensorwright_version']}"),
        ("checkpoint", facts["source"]["hash"]),
        ("model", ", ".join(f"{name} {value}" for name, value in model.items())),
        (
            "options",
            ", ".join(f"{name} {value}" for name, value in facts["build_options"].items() if value is not None),
        ),
        ("files", ", ".join(f"{name} {format_size(size)}" for name, size in facts["files"].items())),
    ]


def _finding(finding: Finding) -> dict[str, str]:
    return {
        "name": finding.name,
        "about": finding.about,
        "status": finding.status.value,
        "style": STYLES[finding.status],
        "worth": worth_text(finding.worth),
        "detail": finding.detail,
        "advice": finding.advice,
    }


def _run_text(data: ReportData) -> str:
    if data.run is None:
        return ""
    steps = data.run.steps
    share = plots.total_seconds(data.run) / max(data.run.seconds, 1e-9)
    return (
        f"Steps of a run of requests of random ids, of which at most {AT_ONCE} run at once: {len(steps)} steps. "
        f"Steps computed for {min(1.0, share):.0%} of the time or more."
    )


def _estimate_text(data: ReportData) -> Markup:
    """Returns a table of the phases: measured, predicted, and the ratio."""
    if data.run is None:
        return Markup("")
    rows = []
    for phase in dict.fromkeys(op.phase for op in data.run.ops):
        ops = [op for op in data.run.ops if op.phase == phase]
        measured, predicted = sum(op.seconds for op in ops), sum(op.predicted for op in ops)
        rows.append(
            Markup("<tr><td>{}</td>" + 3 * "<td class=number>{:.2f}</td>" + "</tr>").format(
                phase, measured * 1e3, predicted * 1e3, predicted / measured
            )
        )
    head = Markup(
        "<table><thead><tr><th scope=col>steps</th><th scope=col class=number>measured, ms</th>"
        "<th scope=col class=number>estimated, ms</th><th scope=col class=number>ratio</th></tr></thead><tbody>"
    )
    return head + Markup("").join(rows) + Markup("</tbody></table>")


def _memory_text(data: ReportData) -> str:
    tokens = chunk_tokens()
    ends = {
        of_rows: max((b["offset"] + b["bytes"] for b in data.buffers if b["of_rows"] == of_rows), default=0)
        for of_rows in (False, True)
    }
    apart = sum(b["bytes"] for b in data.buffers if not b["of_rows"])
    return (
        f"A step of {tokens} tokens takes {format_size(ends[False] * tokens)} for results of operations, and "
        f"{format_size(ends[True])} for each row of logits. Without sharing it would take "
        f"{format_size(apart * tokens)}."
    )


def _accuracy(data: ReportData) -> list[tuple[str, str]]:
    record = data.facts.get("accuracy") or {}
    return [
        (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in record.items()
        if name != "output_errors" and value is not None
    ]


def _formats(data: ReportData) -> list[dict[str, str]]:
    record = data.facts.get("quantization")
    if record is None:
        return []
    formats: dict[str, Sequence[str | None]] = record.get("formats") or {}
    rows = []
    for role, errors in record["weight_errors"].items():
        known = [error for error in errors if error is not None]
        error = (
            f"{sum(known) / len(known):.3g}" + (f", at most {max(known):.3g}" if len(known) > 1 else "")
            if known
            else "-"
        )
        used = [fmt for fmt in formats.get(role, ()) if fmt]
        rows.append({"name": role, "format": ", ".join(dict.fromkeys(used)) or record["spec"], "error": error})
    return rows


def _pass(row: PassRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "count": row.count,
        "why": row.why,
        "ms": "" if row.seconds is None else f"{row.seconds * 1e3:.1f}",
        "nodes": "" if row.nodes is None else f"{row.nodes[0]} -> {row.nodes[1]}",
        "changes": [asdict(change) for change in row.changes],
    }
