"""The timeline of an engine: what it keeps, the file that it becomes, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.toy_engine import write_toy_engine
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.engine import trace_file as module
from tensorwright.runtime.engine.trace_file import ENGINE, FIRST_THREAD, OPS, REQUESTS, STEPS, Span, events_of

PROMPTS = [{"prompt_token_ids": list(range(1, 1 + length))} for length in (40, 7, 3)]
PARAMS = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)


def read(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@pytest.fixture(scope="module")
def trace(pico_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Three prompts on two threads, in steps of at most 16 tokens. A thread to which a busy machine gives no processor
    leaves its share to the other one, so one trace of some has the work of both."""
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    for _ in range(20):
        with LLM(pico_engine, threads=2, max_num_tokens=16, max_batch_size=4, trace=file) as llm:
            llm.generate(PROMPTS, PARAMS)
            steps = llm.get_stats()["steps"]
        events = read(file)
        if all(slices(events, FIRST_THREAD + thread) for thread in (0, 1)):
            break
    assert len([e for e in events if e["ph"] == "X" and e["tid"] == STEPS and e["pid"] == ENGINE]) == steps
    return events


def slices(events: list[dict[str, Any]], row: int) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["pid"] == ENGINE and e["tid"] == row]


def test_steps_have_their_tokens(trace: list[dict[str, Any]]) -> None:
    steps = slices(trace, STEPS)
    made = sum(step["args"]["tokens"] for step in steps)
    assert made == sum(len(p["prompt_token_ids"]) for p in PROMPTS) + len(PROMPTS) * (PARAMS.max_tokens - 1)
    assert max(step["args"]["tokens"] for step in steps) <= 16
    assert max(step["args"]["sequences"] for step in steps) == 3
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in itertools.pairwise(steps))


def test_instructions_lie_in_their_steps(trace: list[dict[str, Any]]) -> None:
    steps, ops = slices(trace, STEPS), slices(trace, OPS)
    counts = Counter(
        next(
            i for i, s in enumerate(steps) if s["ts"] - 1 <= op["ts"] and op["ts"] + op["dur"] <= s["ts"] + s["dur"] + 1
        )
        for op in ops
    )
    assert len(set(counts.values())) == 1
    assert len(counts) == len(steps)
    assert {"embedding", "matmul", "paged_attention"} <= {op["name"] for op in ops}
    assert any(op["args"]["module"] == "model.layers.3.mlp.down_proj" for op in ops)


def test_threads_work_inside_instructions(trace: list[dict[str, Any]]) -> None:
    ops = slices(trace, OPS)
    for thread in (0, 1):
        work = slices(trace, FIRST_THREAD + thread)
        assert work, thread
        for span in work[:200]:
            assert any(
                op["name"] == span["name"] and op["ts"] - 1 <= span["ts"] <= op["ts"] + op["dur"] + 1 for op in ops
            )


def test_requests_are_rows_and_flows(trace: list[dict[str, Any]]) -> None:
    rows = [e for e in trace if e["pid"] == REQUESTS and e["ph"] in "be"]
    for request in {e["id"] for e in rows}:
        own = [e for e in rows if e["id"] == request]
        assert Counter(e["ph"] for e in own) == {"b": len(own) // 2, "e": len(own) // 2}
        assert own[0]["name"] == own[-1]["name"] == f"request {request}"
        decodes = [e for e in own if e["name"] == "decode" and e["ph"] == "b"]
        assert len(decodes) >= PARAMS.max_tokens - 1
    flows = [e for e in trace if e["ph"] in "stf"]
    for request in {e["id"] for e in flows}:
        phases = "".join(e["ph"] for e in flows if e["id"] == request)
        assert phases[0] == "s"
        assert phases[-1] == "f"
        assert set(phases[1:-1]) <= {"t"}


def test_tokens_do_not_depend_on_it(pico_engine: Path, tmp_path: Path) -> None:
    outputs = []
    for trace in (None, tmp_path / "trace.json"):
        with LLM(pico_engine, threads=2, max_batch_size=4, trace=trace) as llm:
            outputs.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)])
    assert outputs[0] == outputs[1]


def test_events_of_spans() -> None:
    spans = [
        Span(module.ARRIVED, 1000, 1000, 7, 0, 3, 0, 0, 0), Span(module.STEP, 2000, 5000, 1, 0, 3, 1, 1, 2),
        Span(module.SHARE, 2000, 5000, 7, 0, 3, 0, 0, 0), Span(module.OP, 2500, 4500, 0, 0, 3, 0, 0, 0),
        Span(module.OP, 4500, 4600, 9, 0, 3, 0, 0, 0), Span(module.TASKS, 2600, 4400, 0, 1, 5, 0, 0, 0),
        Span(module.SAMPLE, 5000, 5500, 1, 0, 1, 42, 1, 0), Span(module.ENDED, 6000, 6000, 7, 0, 0, 0, 0, 0),
    ]  # fmt: skip
    events = list(events_of(spans, [("matmul", "lm_head")]))
    by_name = {event["name"]: event for event in events if event["ph"] == "X"}
    assert by_name["step 1"] == {
        "ph": "X", "name": "step 1", "pid": ENGINE, "tid": STEPS, "ts": 1.0, "dur": 3.0,
        "args": {"tokens": 3, "sequences": 1, "rows": 1, "waiting": 2},
    }  # fmt: skip
    assert by_name["instruction 9"]["args"]["module"] == ""
    assert {"free KV blocks", "batch", "tokens of a step"} == {e["name"] for e in events if e["ph"] == "C"}
    assert [e["name"] for e in events if e["ph"] == "b"] == ["request 7", "prefill"]
    assert not [e for e in events if e["ph"] in "stf"]  # one step needs no arrow
    assert list(events_of([], [])) != []  # names alone


@pytest.mark.parametrize("place", ["no/such/folder/trace.json", "."])
def test_a_file_that_cannot_be_is_refused_before_the_start(tmp_path: Path, place: str) -> None:
    engine = write_toy_engine(tmp_path / "toy")
    with pytest.raises(InvalidOptionError, match=r"trace: .* cannot be written"):
        LLM(engine, trace=tmp_path / place)


def test_nothing_is_left_of_an_engine_that_does_not_start(tmp_path: Path) -> None:
    engine = write_toy_engine(tmp_path / "toy")
    with pytest.raises(Exception, match="kv_cache_memory"):
        LLM(engine, trace=tmp_path / "trace.json", kv_cache_memory=1)
    assert not list(tmp_path.glob("trace*"))


def test_commands_write_it(tmp_path: Path) -> None:
    engine = str(write_toy_engine(tmp_path / "toy"))
    for command in (
        ["run", engine, "--prompt", "abc", "--max-tokens", "3"],
        ["bench", "latency", engine, "--input-len", "8", "--output-len", "4", "--requests", "2", "--warmup", "0"],
    ):
        file = tmp_path / f"{command[0]}.json"
        done = CliRunner().invoke(cli, [*command, "--trace", str(file)])
        assert done.exit_code == 0, done.output
        assert any(event["name"] == "prefill" for event in read(file))
        assert not file.with_name(f"{file.name}.part").exists()
