"""Profiles: steps by their shape, sums and rooflines of made-up measurements, tables, the picture, `run --profile`."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from support.command_line import call
from support.isa_levels import PRESENT
from support.ragged import Ragged
from support.rank_processes import rank_files
from support.toy_engine import write_toy_engine
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, IsaError
from tensorwright.runtime.commands import run_profile
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.tools.ceilings import REPEATS, Ceilings, describe, measure_ceilings
from tensorwright.runtime.tools.profile import as_dict, module_role, summarise
from tensorwright.runtime.tools.profile_chart import IDEAL, TAKEN, WIDTH, draw_profile
from tensorwright.runtime.tools.profile_show import show_profile
from tensorwright.runtime.tools.rank_link import measure_link

Capture = pytest.CaptureFixture[str]
CEILINGS = Ceilings(threads=2, read=100.0, float32=10.0, bfloat16=20.0, int8=40.0)  # per second: small numbers


ARITHMETIC = {"quantized_matmul": "int8", "matmul": "bfloat16"}


def instruction(name: str, op: str, seconds: float, bytes_moved: int, operations: int) -> dict[str, Any]:
    return {
        "name": name, "op": op, "arithmetic": ARITHMETIC.get(op, "float32"), "calls": 3, "ns": round(seconds * 1e9),
        "bytes": bytes_moved, "ops": operations,
    }  # fmt: skip


def measured(**phases: list[dict[str, Any]]) -> dict[str, Any]:
    """As `LLM.get_profile`."""
    result = {}
    for phase in ("prefill", "decode", "mixed"):
        rows = phases.get(phase, [])
        steps = {"steps": 3 if rows else 0, "tokens": 6, "ns": sum(row["ns"] for row in rows)}
        result[phase] = {"steps": steps, "instructions": rows}
    return result


ROWS = [
    instruction("model.layers.0.mlp.down_proj", "quantized_matmul", 4.0, 100, 120),  # 1 s of reads, 3 s of int8
    instruction("model.layers.1.mlp.down_proj", "quantized_matmul", 6.0, 300, 40),  # 3 s of reads, 1 s of int8
    instruction("lm_head", "matmul", 2.0, 10, 20),  # 1 s of bf16, 2 s of fp32
    instruction("model.layers.0.norm", "rms_norm", 8.0, 50, 10),  # 0.5 s of reads, 1 s of fp32
]


def test_sums_and_rooflines() -> None:
    (phase,) = summarise(measured(decode=ROWS), CEILINGS)
    assert (phase.phase, phase.steps, phase.tokens, phase.seconds) == ("decode", 3, 6, 20.0)
    assert [sums.op for sums in phase.ops] == ["quantized_matmul", "rms_norm", "matmul"]
    quantized, norm, matmul = phase.ops
    assert (quantized.calls, quantized.seconds, quantized.bytes, quantized.operations) == (6, 10.0, 400, 160)
    # Of each instruction by itself: 3 + 3 of 10 seconds. Of the sums it would be max(4, 4).
    assert quantized.ideal_seconds == 6.0
    assert quantized.roofline == 0.6
    assert (quantized.bytes_per_second, quantized.operations_per_second) == (40.0, 16.0)
    assert (matmul.roofline, norm.roofline) == (0.5, 0.125)
    assert phase.roofline == (6.0 + 1.0 + 1.0) / 20.0
    assert {(sums.module, sums.op) for sums in phase.modules} == {
        ("mlp.down_proj", "quantized_matmul"), ("lm_head", "matmul"), ("norm", "rms_norm"),
    }  # fmt: skip
    assert sum(sums.seconds for sums in phase.modules) == sum(sums.seconds for sums in phase.ops) == phase.seconds


def test_experts_are_counted_by_layer() -> None:
    rows = [instruction(f"model.layers.{i}.mlp.experts", "experts", 1.0, 6_000_000, 1) for i in range(2)]
    rows = [row | {"expert_rows": taken} for row, taken in zip(rows, ([3, 0, 3, 0], [0, 0, 0, 6]), strict=True)]
    phases = summarise(measured(decode=[*ROWS, *rows]), CEILINGS)
    assert [layer.entropy for layer in phases[0].experts] == [1.0, 0.0]
    first, _ = as_dict(phases, CEILINGS)["phases"]["decode"]["experts"]
    expected = {"module": "model.layers.0.mlp.experts", "taken": [3, 0, 3, 0], "bytes": 6_000_000, "entropy": 1.0}
    assert first == expected
    console = Console(file=StringIO(), width=200)
    show_profile(phases, CEILINGS, console)
    shown = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert "experts: 2.000 MB per token were read and written for them" in shown
    assert "model.layers.0.mlp.experts 4 6 0: 50.0% 1: 0.0% 2 1.00 2.00" in shown
    assert "model.layers.1.mlp.experts 4 6 3: 100.0% 0: 0.0% 3 0.00 2.00" in shown


def test_each_type_of_arithmetic_has_its_peak() -> None:
    assert [CEILINGS.peak(arithmetic) for arithmetic in ("int8", "bfloat16", "float32")] == [40.0, 20.0, 10.0]
    without = Ceilings(threads=1, read=1.0, float32=10.0, bfloat16=None, int8=1.0)
    assert without.peak("bfloat16") == 10.0
    assert "bf16" not in describe(without)


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("model.layers.3.mlp.down_proj", "mlp.down_proj"),
        ("transformer.h.11.attn", "attn"),
        ("model.layers.3.experts.7.w", "w"),
        ("lm_head", "lm_head"),
        ("model.norm", "model.norm"),
        ("0.attention", "attention"),
        ("", ""),
    ],
)
def test_roles(path: str, role: str) -> None:
    assert module_role(path) == role


def test_plain_data(capsys: Capture) -> None:
    data = json.loads(json.dumps(as_dict(summarise(measured(decode=ROWS, prefill=ROWS[:1]), CEILINGS), CEILINGS)))
    assert list(data["phases"]) == ["prefill", "decode"]
    first = data["phases"]["prefill"]["ops"][0]
    assert first == {
        "op": "quantized_matmul", "calls": 3, "seconds": 4.0, "bytes": 100, "operations": 120, "ideal_seconds": 3.0,
        "bytes_per_second": 25.0, "operations_per_second": 30.0, "roofline": 0.75,
    }  # fmt: skip
    assert data["phases"]["prefill"]["modules"][0]["module"] == "mlp.down_proj"
    assert data["ceilings"]["int8"] == 40.0


def test_the_picture_has_a_bar_per_op() -> None:
    phases = summarise(measured(decode=ROWS, prefill=ROWS[:1]), CEILINGS)
    svg = ElementTree.fromstring(draw_profile(phases, CEILINGS, "a <name> & more"))
    space = "{http://www.w3.org/2000/svg}"
    texts = [text.text or "" for text in svg.iter(f"{space}text")]
    assert "a <name> & more" in texts
    assert [text for text in texts if text in ("quantized_matmul", "rms_norm", "matmul")] == [
        "quantized_matmul", "quantized_matmul", "rms_norm", "matmul",
    ]  # fmt: skip
    boxes = [(box.get("fill"), float(box.get("width", "0"))) for box in svg.iter(f"{space}rect") if box.get("x")]
    taken = [width for fill, width in boxes if fill == TAKEN][1:]  # after the legend's
    ideal = [width for fill, width in boxes if fill == IDEAL][1:]
    assert taken == pytest.approx([440, 440, 352, 88])
    assert ideal == pytest.approx([330, 264, 44, 44])
    assert (
        max(float(box.get("x", "0")) + float(box.get("width", "0")) for box in svg.iter(f"{space}rect") if box.get("x"))
        < WIDTH
    )


def test_steps_by_their_shape(tmp_path: Path) -> None:
    executor = native.create_executor(open_engine(write_toy_engine(tmp_path / "engine")), 1)
    run = Ragged(executor, 64)
    executor.profile(True)
    run.step([("a", [1, 2, 3]), ("b", [4, 5])])
    run.step([("a", [6]), ("c", [7] * 8)])
    run.step([("a", [6]), ("b", [7]), ("c", [8])])
    run.step([("a", [6])], rows="last")
    executor.profile(False)
    run.step([("a", [6])])
    steps = executor.profile_steps()
    counts = {
        phase: tuple(sums[key] for key in ("steps", "sequences", "tokens", "rows")) for phase, sums in steps.items()
    }
    assert counts == {"prefill": (1, 2, 5, 5), "mixed": (1, 2, 9, 9), "decode": (2, 4, 4, 4)}
    tables = {phase: executor.profile_table(phase) for phase in ("", *steps)}
    for i, whole in enumerate(tables[""]):
        parts = [tables[phase][i] for phase in steps]
        for key in ("calls", "ns", "bytes", "ops"):
            assert whole[key] == sum(part[key] for part in parts)
        assert {part["name"] for part in parts} == {whole["name"]}
    for phase, sums in steps.items():
        assert sum(row["ns"] for row in tables[phase]) == sums["ns"] > 0
        assert {row["calls"] for row in tables[phase]} == {sums["steps"]}
    executor.profile(True)
    assert all(sums["steps"] == 0 for sums in executor.profile_steps().values())
    with pytest.raises(InvalidOptionError, match="phase must be prefill, decode, mixed or empty, is 'sleep'"):
        executor.profile_table("sleep")


def test_of_a_running_engine(tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    with LLM(
        write_toy_engine(tmp_path / "engine"), kv_cache_memory="1MiB", threads=1, enable_prefix_caching=False
    ) as llm:
        llm.generate("not measured", params)
        assert all(phase["steps"]["steps"] == 0 for phase in llm.get_profile().values())
        llm.profile(True)
        llm.generate("measured", params)
        llm.profile(False)
        llm.generate("not measured", params)
        profile = llm.get_profile()
    counts = {name: (phase["steps"]["steps"], phase["steps"]["tokens"]) for name, phase in profile.items()}
    assert counts == {"prefill": (1, len("measured")), "decode": (3, 3), "mixed": (0, 0)}
    assert all(row["calls"] == 3 for row in profile["decode"]["instructions"])


@pytest.mark.computes
def test_ceilings_of_this_machine() -> None:
    assert REPEATS > 1
    if "avx2" not in PRESENT:  # what measures them is written for AVX2 at least
        with pytest.raises(IsaError, match="ceilings: needs AVX2 or NEON, which this processor lacks"):
            measure_ceilings(1)
        return
    ceilings = measure_ceilings(1)
    assert min(ceilings.read, ceilings.float32, ceilings.int8) > 0
    assert ceilings.bfloat16 is None or ceilings.bfloat16 > 0
    assert describe(ceilings).startswith("ceilings measured at the start with 1 threads: read ")


def test_the_link_of_ranks_is_measured() -> None:
    link = measure_link(rounds=3)
    assert 0 < link.seconds < PATIENCE
    assert 0 < link.rate < 1e16
    assert not rank_files()  # nothing stays


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(run_profile, "measure_ceilings", lambda threads: CEILINGS)
    return str(write_toy_engine(tmp_path / "engine"))


RUN = ("--prompt", "ab", "--max-tokens", "3", "--ignore-eos", "--threads", "1", "--kv-cache-memory", "1MiB")


def test_run_shows_tables(engine: str, capsys: Capture) -> None:
    plain = call(capsys, "run", engine, *RUN)
    code, out, err = call(capsys, "run", engine, *RUN, "--profile")
    assert (code, out) == plain[:2]
    assert "ceilings measured at the start with 2 threads" in err
    assert "prefill: 1 steps, 2 tokens in " in err
    assert "decode: 2 steps, 2 tokens in " in err
    assert "mixed" not in err.split("roofline", 1)[1]
    for words in ("matmul", "paged_attention", "GB/s", "GOP/s", "attention paged_attention", "lm_head matmul"):
        assert words in err
    assert "…" not in err


def test_run_for_programs(engine: str, capsys: Capture) -> None:
    code, out, _ = call(capsys, "run", engine, *RUN, "--profile", "--json")
    answer, profile = map(json.loads, out.splitlines())
    assert code == 0
    assert len(answer["token_ids"]) == 3
    assert {name: phase["steps"] for name, phase in profile["profile"]["phases"].items()} == {"prefill": 1, "decode": 2}


def test_run_draws(engine: str, tmp_path: Path, capsys: Capture) -> None:
    picture = tmp_path / "profile.svg"
    code, _, err = call(capsys, "run", engine, *RUN, "--profile-svg", str(picture))
    assert code == 0
    assert "decode: 2 steps" in err
    texts = [text.text or "" for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert "engine: time by op" in texts
    assert any(text.startswith("decode: 2 steps, 2 tokens") for text in texts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile-svg", "picture.png"], "the file's name must end in .svg, got 'picture.png'"),
        (["--profile-svg", "no/such/folder/picture.svg"], "a file in a folder that exists"),
        (["--profile-svg", "/proc/picture.svg"], "a file that can be written, got '/proc/picture.svg'"),
        (["--profile", "--threads", "0"], "--threads must be positive, got 0"),
    ],
)
def test_run_refuses(engine: str, capsys: Capture, arguments: list[str], words: str) -> None:
    code, out, err = call(capsys, "run", engine, *RUN, *arguments)
    assert (code, out) == (2, "")
    assert words in err
