"""Differences of engines: of formats, types and graphs; and of none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorwright.insight.devices.device import Device, platforms
from tensorwright.insight.diff import diff as module
from tensorwright.insight.diff.diff import Change, Difference, changes, diff
from tensorwright.insight.diff.graphs import compare_graphs
from tensorwright.ir.parse import parse_graph
from tensorwright.runtime.commands.cli import cli

PEAKS = {"float32": 1e11, "bfloat16": 2e11, "int8": 4e11}
SLOW = Device("a made one", platforms()["x86"], 64 << 30, 10e9, PEAKS, "made up for tests")


@pytest.fixture(autouse=True)
def _made_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_here", lambda threads, linked=False: (SLOW, 2))


def table(rows: tuple[Change, ...]) -> dict[str, tuple[object, object]]:
    return {change.name: (change.a, change.b) for change in rows}


def test_an_engine_and_itself(pico_engine: Path) -> None:
    found = diff(pico_engine, pico_engine)
    assert found.equal
    assert all(change.ratio == 1 for change in found.speed)
    assert len(found.speed) == 3
    assert "are equal" in CliRunner().invoke(cli, ["diff", str(pico_engine), str(pico_engine)]).output


def test_types_of_caches(pico_engine: Path, pico_engine_int8_kv: Path) -> None:
    found = diff(pico_engine, pico_engine_int8_kv)
    assert table(found.options) == {"kv_cache_dtype": ("auto", "int8")}
    assert table(found.passes) == {"quantize_kv_cache": (0, 8)}
    ratio = next(change.ratio for change in found.memory if change.name == "KV cache, bytes per token")
    assert ratio == pytest.approx(0.53, abs=0.03)
    assert not found.equal
    assert not found.formats
    assert next(change for change in found.speed if change.name == "batch").ratio < 1


def test_types_of_activations(pico_engine: Path, pico_engine_float32: Path) -> None:
    found = diff(pico_engine, pico_engine_float32)
    assert table(found.model)["dtype"] == ("bfloat16", "float32")
    assert table(found.instructions)["matmul in bfloat16"][1] is None
    assert next(change for change in found.memory if change.name == "weights, bytes").ratio == pytest.approx(
        2, rel=0.01
    )


def test_heads(pico_engine: Path, pico_heads_engine: Path) -> None:
    assert table(diff(pico_engine, pico_heads_engine).model)["heads"] == (None, "eagle3")


def test_another_target(pico_engine_float32: Path, pico_engine_onnx: Path) -> None:
    found = diff(pico_engine_float32, pico_engine_onnx)
    assert table(found.model)["target"] == ("cpu", "onnx")
    assert found.speed == ()
    assert "not of target cpu" in found.speed_is


def test_graphs_by_module() -> None:
    def graph(scale: float, more: str = "") -> str:
        lines = [
            f"  %y{i}: float32[seq, 4] = mul_scalar(%x{i}) {{value = {scale}}} in model.layers.{i}.mlp"
            for i in range(2)
        ]
        inputs = [f"  %x{i}: float32[seq, 4] = input()" for i in range(2)]
        return "\n".join(
            ['graph "toy" stage traced {', *inputs, *lines, *([more] if more else []), "  return %y0", "}"]
        )

    a, b = parse_graph(graph(2.0)), parse_graph(graph(3.0, "  %z: float32[seq, 4] = neg(%y0) in model.norm"))
    assert compare_graphs(a, a) == []
    first, second = compare_graphs(a, b)
    assert (first.module, first.layers) == ("model.layers.0.mlp", 2)
    assert "value=2.0" in first.gone[0]
    assert "value=3.0" in first.new[0]
    assert (second.module, second.gone, len(second.new)) == ("model.norm", (), 1)


def test_changes() -> None:
    rows = changes({"same": 1, "other": 2.0, "gone": "x"}, {"same": 1, "other": 3.0, "new": [1]})
    assert table(rows) == {"other": (2.0, 3.0), "gone": ("x", None), "new": (None, [1])}
    assert [change.ratio for change in rows] == [1.5, None, None]
    assert Change("zero", 0, 5).ratio is None


@pytest.mark.slow
def test_measured(pico_draft_engine: Path) -> None:
    found = diff(pico_draft_engine, pico_draft_engine, measure=True)
    assert found.speed_is.startswith("measured")
    assert all(change.a > 0 and change.b > 0 for change in found.speed)


def test_the_command(pico_engine: Path, pico_engine_int8_kv: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(cli, ["diff", str(pico_engine), str(pico_engine_int8_kv), "--json"])
    assert run.exit_code == 0, run.output
    data = json.loads(run.output)
    assert data["passes"] == {"quantize_kv_cache": [0, 8]}
    assert data["equal"] is False
    shown = CliRunner().invoke(cli, ["diff", str(pico_engine), str(pico_engine_int8_kv)]).output
    assert "Build options" in shown
    assert "Speed, seconds: predicted" in shown
    assert CliRunner().invoke(cli, ["diff", str(pico_engine), str(tmp_path)]).exit_code != 0


def test_equal_ignores_times_alone() -> None:
    none: tuple[Change, ...] = ()
    same = Difference(
        "a", "b", none, none, none, none, none, none, none, none, (), (1, 1), (Change("decode", 1, 2),), ""
    )
    assert same.equal


def test_the_command_in_its_own_process(pico_engine: Path, pico_engine_int8_kv: Path) -> None:
    command = Path(sys.executable).with_name("tensorwright")
    done = subprocess.run(
        [command, "diff", pico_engine, pico_engine_int8_kv, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["options"] == {"kv_cache_dtype": ["auto", "int8"]}
