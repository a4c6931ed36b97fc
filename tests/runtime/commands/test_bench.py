"""`tensorwright bench` on a toy engine: what is counted, not how fast it is; and figures of made-up times."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from support.command_line import call
from support.toy_engine import write_toy_engine
from tensorwright.errors import EngineStoppedError, NumericalError
from tensorwright.runtime.base.percentiles import distribution
from tensorwright.runtime.commands import bench
from tensorwright.runtime.commands.bench import latencies, rates
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.tools.bench_engine import BenchEngine, Load, Trace
from tensorwright.runtime.tools.ceilings import Ceilings

Capture = pytest.CaptureFixture[str]
CEILINGS = Ceilings(threads=1, read=1e9, float32=1e9, bfloat16=2e9, int8=4e9)
COMMON = ("--input-len", "20", "--output-len", "5", "--threads", "1", "--kv-cache-memory", "1MiB")


def make_load(**changes: Any) -> Load:
    whole = {
        "input_len": 20, "output_len": 5, "batch_size": 2, "requests": 4, "warmup": 1, "seed": 0, "threads": 1,
        "kv_cache_memory": "1MiB", "max_num_tokens": 512,
    }  # fmt: skip
    return Load(**{**whole, **changes})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineDir:
    return open_engine(write_toy_engine(tmp_path_factory.mktemp("toy") / "engine"))


@pytest.fixture(autouse=True)
def ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure_ceilings", lambda threads: CEILINGS)


def test_figures_of_made_up_times() -> None:
    traces = [Trace(1.0, [3.0, 4.0, 6.0]), Trace(2.0, [3.0, 3.5, 4.0]), Trace(0.0, [0.5])]
    assert latencies(traces) == {
        "ttft": [2.0, 1.0, 0.5], "tpot": [1.5, 0.5], "itl": [1.0, 2.0, 0.5, 0.5], "request": [5.0, 2.0, 0.5],
    }  # fmt: skip
    assert rates([traces[:2], traces[2:]], make_load(input_len=10, output_len=3)) == {
        "requests": [2 / 5, 2.0], "input_tokens": [20 / 5, 20.0], "output_tokens": [6 / 5, 6.0],
    }  # fmt: skip
    assert distribution([float(i) for i in range(101)]) == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert distribution([]) is None


def test_prompts_are_random_and_repeatable(engine: EngineDir) -> None:
    first, again, other = (make_load(seed=seed).prompts(engine, 3) for seed in (0, 0, 1))
    assert [p.tolist() for p in first] == [p.tolist() for p in again]
    assert len({tuple(p.tolist()) for p in [*first, *other, *make_load().prompts(engine, 3, part=1)]}) == 9
    assert all(len(p) == 20 and p.min() >= 0 and p.max() < engine.vocab_size for p in first)


def test_requests_run_to_their_end(engine: EngineDir) -> None:
    """Side by side: the prompts fill one step, the tokens after that come four at a time. No prefix is reused."""
    load = make_load(batch_size=4)
    with BenchEngine(engine, load, 4) as bench:
        for _ in range(2):
            traces = bench.run(load.prompts(engine, 4))
            assert [len(trace.tokens) for trace in traces] == [5] * 4
            assert all(trace.submitted <= trace.tokens[0] and sorted(trace.tokens) == trace.tokens for trace in traces)
        stats = bench.stats()
        measured = bench.profiled(load.prompts(engine, 1))
    assert (stats["prefill_tokens"], stats["prefix_hit_tokens"], stats["generated_tokens"]) == (160, 0, 40)
    assert measured["prefill"]["steps"]["tokens"] == 20
    assert measured["decode"]["steps"]["steps"] == 4


def test_latency(engine: EngineDir, capsys: Capture) -> None:
    command = ("bench", "latency", str(engine.path), *COMMON, "--requests", "4", "--batch-size", "2")
    code, out, err = call(capsys, *command, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert (result["benchmark"], result["rounds"], result["load"]["threads"]) == ("latency", 2, 1)
    assert set(result["seconds"]) == {"ttft", "tpot", "itl", "request"}
    for name, values in result["seconds"].items():
        assert 0 <= values["p50"] <= values["p90"] <= values["p99"]
        assert values["p50"] > 0 or name in ("tpot", "itl")  # tokens of so small a model may come together
    assert result["seconds"]["request"]["mean"] >= result["seconds"]["ttft"]["mean"]
    assert set(result["phases"]) <= {"prefill", "decode", "mixed"}
    assert result["phases"]["decode"]["roofline"] > 0
    assert sum(phase["tokens"] for phase in result["phases"].values()) == 2 * (20 + 4)
    assert result["ceilings"]["int8"] == 4e9
    out = call(capsys, *command)[1]
    for words in (
        "4 requests of 20 + 5 tokens, batch size 2, 1 threads",
        "TTFT ms",
        "TPOT ms",
        "ITL ms",
        "P99",
        "decode:",
    ):
        assert words in out
    assert "of the roofline" in out


def test_throughput(engine: EngineDir, capsys: Capture) -> None:
    command = (
        "bench",
        "throughput",
        str(engine.path),
        *COMMON,
        "--requests",
        "5",
        "--batch-size",
        "2",
        "--repeats",
        "2",
    )
    result = json.loads(call(capsys, *command, "--json")[1])
    assert (result["benchmark"], result["rounds"], result["load"]["requests"]) == ("throughput", 2, 5)
    each = result["per_second"]
    assert each["input_tokens"]["p50"] == pytest.approx(20 * each["requests"]["p50"])
    assert each["output_tokens"]["p99"] == pytest.approx(5 * each["requests"]["p99"])
    out = call(capsys, *command)[1]
    for words in ("10 requests of 20 + 5 tokens", "requests/s", "input tokens/s", "output tokens/s", "P50"):
        assert words in out


def test_a_single_token_has_no_gaps(engine: EngineDir, capsys: Capture) -> None:
    command = ("bench", "latency", str(engine.path), *COMMON, "--requests", "2", "--output-len", "1", "--warmup", "0")
    result = json.loads(call(capsys, *command, "--json")[1])
    assert (result["seconds"]["tpot"], result["seconds"]["itl"]) == (None, None)
    assert "ITL" not in call(capsys, *command)[1]


def test_preemptions_are_told(engine: EngineDir, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BenchEngine, "stats", lambda bench: {"preemptions": 2})
    command = ("bench", "throughput", str(engine.path), *COMMON, "--batch-size", "2", "--requests", "2")
    assert json.loads(call(capsys, *command, "--json")[1])["preemptions"] == 2
    assert "2 preemptions: the KV cache was too small; raise --kv-cache-memory" in call(capsys, *command)[1]


@pytest.mark.parametrize("kind", ["latency", "throughput"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input-len", "100", "--output-len", "29"], "max_seq_len 128, got 100 + 29"),
        (["--input-len", "0"], "--input-len must be positive, got 0"),
        (["--output-len", "-1"], "--output-len must be positive"),
        (["--batch-size", "0"], "--batch-size must be positive"),
        (["--requests", "0"], "--requests must be positive"),
        (["--warmup", "-1"], "--warmup must not be negative"),
        (["--seed", "-1"], "--seed must not be negative"),
        (["--threads", "0"], "--threads must be positive"),
        (["--max-num-tokens", "0"], "--max-num-tokens must be positive"),
        (["--kv-cache-memory", "lots"], "kv_cache_memory must be"),
        (["--input-lem", "1"], "No such option"),
    ],
)
def test_wrong_input(engine: EngineDir, capsys: Capture, kind: str, arguments: list[str], words: str) -> None:
    code, out, err = call(capsys, "bench", kind, str(engine.path), *COMMON, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_more_wrong_input(engine: EngineDir, capsys: Capture) -> None:
    odd = call(capsys, "bench", "latency", str(engine.path), *COMMON, "--batch-size", "2", "--requests", "3")
    assert odd[0] == 2
    assert "--requests must be a multiple of --batch-size 2" in odd[2]
    none = call(capsys, "bench", "throughput", str(engine.path), *COMMON, "--repeats", "0")
    assert none[0] == 2
    assert "--repeats must be positive" in none[2]
    code, out, _ = call(capsys, "bench", "latency", "nowhere", "--json")
    assert (code, json.loads(out)["error"]) == (2, "EngineError")
    long = call(
        capsys,
        "bench",
        "latency",
        str(engine.path),
        "--input-len",
        "127",
        "--output-len",
        "1",
        "--requests",
        "1",
        "--threads",
        "1",
    )
    assert long[0] == 0, long


class Failing:
    """An engine whose only request ends as told."""

    stopped = False

    def __init__(self, **event: Any):
        self._event = type("Event", (), {"request_id": 1, "tokens": [], "error_type": "", "error": "", **event})

    def submit(self, *arguments: Any) -> None: ...

    def wait_events(self, timeout: float) -> list[Any]:
        return [self._event]

    def shutdown(self, *arguments: Any) -> None: ...


@pytest.mark.parametrize(
    ("event", "kind", "words"),
    [
        ({"finish": "error", "error_type": "NumericalError", "error": "NaN"}, NumericalError, "NaN"),
        ({"finish": "abort"}, EngineStoppedError, "ended early: abort"),
    ],
)
def test_a_request_that_fails(
    engine: EngineDir, monkeypatch: pytest.MonkeyPatch, event: dict[str, Any], kind: type[Exception], words: str
) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *arguments: Failing(**event))
    with BenchEngine(engine, make_load(), 1) as bench, pytest.raises(kind, match=words):
        bench.run([np.zeros(20, np.int32)])
