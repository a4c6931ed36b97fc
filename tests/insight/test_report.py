"""Reports: what the page holds, that it needs nothing from outside, and how it behaves in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.waiting import PATIENCE
from tensorwright.errors import EngineError, InvalidOptionError, MissingDependencyError
from tensorwright.insight import report as package
from tensorwright.insight.report import command
from tensorwright.insight.report.collect import ReportData, collect
from tensorwright.insight.report.graph_tree import tree_html
from tensorwright.insight.report.page import render
from tensorwright.ir.parse import parse_graph
from tensorwright.runtime.commands.cli import cli

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--virtual-time-budget=8000",
)  # fmt: skip

pytestmark = pytest.mark.slow


class Reader(HTMLParser):
    """Collects the texts, the ids, and the places that a page names."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.places: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.ids += [names["id"]] if names.get("id") else []
        self.places += [names[name] for name in ("src", "href", "action") if names.get(name)]
        self.hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self.hidden else data


@pytest.fixture(scope="module")
def data(pico_engine_int4_kv: Path, pico_model: Path) -> ReportData:
    return collect(pico_engine_int4_kv, pico_model)


@pytest.fixture(scope="module")
def page(data: ReportData) -> str:
    return render(data)


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    read = Reader()
    read.feed(page)
    return read


def test_nothing_comes_from_outside(page: str, reader: Reader) -> None:
    assert all(place.startswith("#") for place in reader.places), reader.places
    assert "default-src 'none'" in page
    assert not re.search(r"@import|url\(\s*['\"]?http", page.split("<body>")[0])


def test_links_lead_somewhere(reader: Reader) -> None:
    assert {place.removeprefix("#") for place in reader.places} <= set(reader.ids)
    assert len(reader.ids) == len(set(reader.ids))


def test_every_section_is_there(reader: Reader, data: ReportData) -> None:
    for name in ("engine", "next", "roofline", "predicted", "timeline", "memory", "accuracy", "passes", "graph"):
        assert name in reader.ids, name
    for words in ("flash attention", "recognise_rms_norm", "quantize_kv_cache", "Before the passes", "self_attn"):
        assert words in reader.text, words
    assert data.facts["source"]["hash"] in reader.text


def test_the_run(data: ReportData) -> None:
    assert data.run is not None
    assert data.run.tokens == 10 * 24
    assert max(step.sequences for step in data.run.steps) == 4
    assert max(step.waiting for step in data.run.steps) > 0
    assert {op.phase for op in data.run.ops} >= {"decode"}
    assert all(op.predicted > 0 for op in data.run.ops if op.bytes)
    blocks = [step.free_blocks for step in data.run.steps]
    assert all(free is not None for free in blocks)
    assert len(set(blocks)) > 1


def test_passes_before_and_after(data: ReportData) -> None:
    rows = {row.name: row for row in data.passes}
    fused = rows["recognise_attention"]
    assert fused.count == 8
    assert fused.nodes is not None
    assert fused.nodes[1] < fused.nodes[0]
    assert any("self_attn" in change.module for change in fused.changes)
    assert rows["recognise_alibi"].count == 0
    assert rows["recognise_alibi"].changes == ()


def test_buffers_that_share_memory_are_not_used_together(data: ReportData) -> None:
    rows = [buffer for buffer in data.buffers if not buffer["of_rows"]]
    for a in rows:
        for b in rows:
            apart = a["last"] < b["first"] or b["last"] < a["first"] or a["offset"] + a["bytes"] <= b["offset"]
            handed_over = a["last"] == b["first"] or b["last"] == a["first"]  # an operation in place
            assert a is b or apart or handed_over or b["offset"] + b["bytes"] <= a["offset"], (a, b)


def test_without_model_and_run(pico_engine_onnx: Path) -> None:
    data = collect(pico_engine_onnx, run=False)
    page = render(data)
    assert data.before is None
    assert data.run is None
    assert "Give --model to see the graph" in page
    assert 'id="roofline"' not in page


def test_texts_are_escaped() -> None:
    graph = parse_graph(
        'graph "toy" stage traced {\n  %x: float32[seq, 4] = input()\n'
        '  %y: float32[seq, 4] = gelu(%x) {approximate = "<b>&"} in model.a\n  return %y\n}'
    )
    assert "&lt;b&gt;&amp;" in tree_html(graph)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(page: str, tmp_path: Path, dark: bool) -> None:
    """The plots are drawn, the search finds and unfolds, and nothing is wrong on the console."""
    probe = """<script>
    window.faults = []; window.addEventListener("error", function (e) { window.faults.push(e.message); });
    window.addEventListener("load", function () { setTimeout(function () {
      var box = document.getElementById("search"); box.value = "swiglu"; box.dispatchEvent(new Event("input"));
      box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      var found = document.querySelector("li.found");
      document.body.setAttribute("data-probe", JSON.stringify({
        faults: window.faults, status: document.getElementById("found").textContent,
        shown: !!found && found.closest("details").open, plots:
          document.querySelectorAll(".plot .bk-Figure, .plot .bk-Column").length,
        paper: getComputedStyle(document.body).backgroundColor }));
    }, 3000); });</script>"""
    file = tmp_path / "report.html"
    file.write_text(page.replace("<head>", "<head>" + probe, 1), encoding="utf-8")
    flags = [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]
    flags += ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    done = subprocess.run(
        [str(CHROMIUM), *flags, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=PATIENCE
    )
    found = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert found, done.stderr[-2000:]
    probed = json.loads(found[1].replace("&quot;", '"'))
    assert probed["faults"] == []
    assert re.fullmatch(r"1 of \d+", probed["status"])
    assert probed["shown"]
    assert probed["plots"] == 4  # roofline, estimate, timeline, memory
    assert probed["paper"] == ("rgb(22, 24, 28)" if dark else "rgb(255, 255, 255)")


def test_the_command(pico_engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    run = CliRunner().invoke(cli, ["report", str(pico_engine), "-o", str(out), "--no-run"])
    assert run.exit_code == 0, run.output
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert not list(tmp_path.glob("*.part"))
    nowhere = CliRunner().invoke(cli, ["report", str(pico_engine), "-o", str(tmp_path / "no" / "report.html")])
    assert isinstance(nowhere.exception, InvalidOptionError)
    none = CliRunner().invoke(cli, ["report", str(tmp_path), "-o", str(tmp_path / "other.html")])
    assert isinstance(none.exception, EngineError)
    assert not (tmp_path / "other.html").exists()
    os.mkfifo(tmp_path / "pipe")
    piped = CliRunner().invoke(cli, ["report", str(pico_engine), "-o", str(tmp_path / "pipe"), "--no-run"])
    assert isinstance(piped.exception, InvalidOptionError)
    assert (tmp_path / "pipe").is_fifo()


def test_another_model_is_refused(pico_engine: Path, pico_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "config.json"
    other.write_text(json.dumps(json.loads((pico_model / "config.json").read_text()) | {"hidden_size": 192}))
    with pytest.raises(InvalidOptionError, match=r"has hidden_size 192, and .* was built from one with 384"):
        collect(pico_engine, other, run=False)


def test_without_bokeh(pico_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "bokeh", None)
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    for name in ("page", "plots"):
        monkeypatch.delitem(sys.modules, f"tensorwright.insight.report.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    with pytest.raises(MissingDependencyError, match=r"a report needs bokeh"):
        command.write_report(str(pico_engine), str(tmp_path / "report.html"), None, False)
