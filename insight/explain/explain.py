"""Explains an engine: every known optimization, what became of it here, and what it is worth on this device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import Device, find_device
from tensorwright.insight.devices.here import measure_here
from tensorwright.insight.explain import of_the_graph, of_the_numbers, of_the_runtime
from tensorwright.insight.explain.engine_view import EngineView
from tensorwright.insight.explain.finding import Finding, Status, Worth
from tensorwright.insight.explain.measure import measure_worths
from tensorwright.options.estimate import HERE
from tensorwright.runtime.engine.engine_dir import open_engine

LEAST_WORTH = 1.02
"""What is worth less is no advice."""


@dataclass(frozen=True)
class Explanation:
    """All rows, and those that are worth doing next, by worth. seconds: the predicted times of a decoded token of one
    sequence, of a step of many, and of a prompt; {} for engines whose steps are not ours to count."""

    path: str
    target: str
    device: Device
    findings: tuple[Finding, ...]
    next: tuple[Finding, ...]
    seconds: Mapping[str, float]


def explain(path: str | Path, *, device: str = HERE, measure: bool = False) -> Explanation:
    """Explains the engine at `path`. device: what worths are predicted on. measure: switches off what can be switched
    off, on this machine, and measures what it was worth; it takes a minute or so.

    Raises EngineError, InvalidOptionError.
    """
    if measure and device != HERE:
        raise InvalidOptionError("measure is for this machine; leave it out, or leave out device")
    engine = open_engine(path)
    found = measure_here(None)[0] if device == HERE else find_device(device)
    view = EngineView.of(engine, found)
    findings = [*of_the_graph.rows(view), *of_the_numbers.rows(view), *of_the_runtime.rows(view)]
    if measure:
        worths = measure_worths(engine)
        findings = [_measured(finding, worths) for finding in findings]
    return Explanation(str(path), engine.target, found, tuple(findings), tuple(what_next(findings)), view.seconds)


def _measured(finding: Finding, worths: Mapping[str, Worth]) -> Finding:
    return replace(finding, worth=worths[finding.name]) if finding.name in worths else finding


def what_next(findings: list[Finding]) -> list[Finding]:
    """Returns the rows that bring something and are not done, those that bring most first. Of rows that exclude each
    other the best alone is advice."""
    open_rows = [
        finding
        for finding in findings
        if finding.status in (Status.OFFERED, Status.LOSSY, Status.MISSED)
        and finding.advice
        and (finding.status is Status.MISSED or (finding.worth is not None and finding.worth.largest >= LEAST_WORTH))
    ]
    by_worth = sorted(open_rows, key=lambda finding: -(finding.worth.largest if finding.worth else 1.0))
    chosen: list[Finding] = []
    kinds: set[str] = set()
    for finding in by_worth:
        if not finding.one_of or finding.one_of not in kinds:
            kinds.add(finding.one_of)
            chosen.append(finding)
    return chosen


def as_dict(explanation: Explanation) -> dict[str, Any]:
    """Returns the explanation as plain data: factors, and bytes."""
    return {
        "engine": explanation.path, "target": explanation.target,
        "device": {"name": explanation.device.name, "source": explanation.device.source},
        "seconds": dict(explanation.seconds),
        "optimizations": [_row(finding) for finding in explanation.findings],
        "next": [finding.name for finding in explanation.next],
    }  # fmt: skip


def _row(finding: Finding) -> dict[str, Any]:
    worth = finding.worth
    return {
        "name": finding.name, "group": finding.group, "about": finding.about, "status": finding.status.value,
        "detail": finding.detail, "advice": finding.advice, "page": finding.page,
        "worth": None if worth is None else {
            "decode": worth.decode, "batch": worth.batch, "prefill": worth.prefill, "bytes": worth.bytes,
            "how": worth.how,
        },
    }  # fmt: skip
