"""The Grafana dashboard asks only for metrics and labels that the server has, and is what its program writes."""

from __future__ import annotations

import json
import re
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from support.modules import load_module
from support.places import ROOT
from tensorwright.runtime.requests import metrics
from tensorwright.runtime.serving.server.connections import CLOSED_EARLY
from tensorwright.runtime.serving.server.exposition import HttpMetrics

FOLDER = ROOT / "deploy" / "grafana"
NAME = re.compile(r"\btensorwright_[a-z_]+\b")
GROUPED = re.compile(r"by \(([^)]*)\)")
OF_ALL = {"instance", "model", "le"}
"""Labels that Prometheus, the server and histograms add."""


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load_module(FOLDER / "make_dashboard.py")


def known() -> dict[str, set[str]]:
    """The labels of every series of the server, by its name."""
    found: dict[str, set[str]] = {}
    for metric in (*metrics.GAUGES_AND_TOTALS, *metrics.OBSERVED):
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {metric.name + end: set(metric.labels) for end in ends}
    registry = CollectorRegistry()
    http = HttpMetrics(registry)
    http._requests.labels("GET", "/", "200").inc()
    http.show_connections(SimpleNamespace(served=1, open=1, closed=Counter(dict.fromkeys(CLOSED_EARLY, 1))))  # type: ignore[arg-type]
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads((FOLDER / "tensorwright.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_the_file_is_what_the_program_writes(program: ModuleType) -> None:
    written = (FOLDER / "tensorwright.json").read_text(encoding="utf-8")
    assert written == program.text(), "run deploy/grafana/make_dashboard.py, and commit what it writes"


def test_every_metric_and_label_exists() -> None:
    series = known()
    assert len(expressions()) > 30
    for expression in expressions():
        names = set(NAME.findall(expression))
        assert names
        assert names <= set(series), expression
        grouped = {label.strip() for labels in GROUPED.findall(expression) for label in labels.split(",")}
        for name in names:
            assert grouped <= series[name] | OF_ALL, expression


def test_a_wrong_name_would_be_seen() -> None:
    assert "tensorwright_requests_runing" not in known()
    assert "outcome" not in known()["tensorwright_requests_running"]


def test_panels_do_not_overlap_and_have_legends_of_their_own(program: ModuleType) -> None:
    taken: set[tuple[int, int]] = set()
    ids: set[int] = set()
    for panel in program.dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < program.COLUMNS
        taken |= cells
        ids.add(panel["id"])
        legends = [target["legendFormat"] for target in panel.get("targets", ())]
        assert len(set(legends)) == len(legends)
    assert len(ids) == len(program.dashboard()["panels"])
