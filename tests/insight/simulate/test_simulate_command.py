"""The commands: `tensorwright simulate`, and fleets of `tensorwright estimate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tensorwright.insight.simulate.replica_file import write_replica
from tensorwright.insight.simulate.replica_shape import ReplicaShape
from tensorwright.insight.simulate.step_costs import fixed_costs
from tensorwright.new_file import NewFile
from tensorwright.runtime.commands.cli import cli

SHAPE = ReplicaShape(
    max_seq_len=2048, block_size=16, block_bytes=(100,), group_windows=(0,), kv_cache_bytes=100 * 4096,
    max_batch_size=8, max_num_tokens=64, max_chunk=64, max_queue=1000, prefix_cache=True,
)  # fmt: skip
FIXED = ("--profile", "fixed", "--input-len", "4", "--output-len", "10")


@pytest.fixture
def costs(tmp_path: Path) -> str:
    """A replica whose steps take 10 ms: 80 requests of 10 tokens in a second."""
    path = tmp_path / "costs.json"
    write_replica(NewFile(path, "--save-costs"), SHAPE, fixed_costs(0.010))
    return str(path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["simulate", *arguments])


def result_of(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output + str(done.exception)
    found: dict[str, Any] = json.loads(done.output)
    return found


def fault_of(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code != 0
    return done.output + str(done.exception)


def test_the_same_command_gives_the_same_figures(costs: str) -> None:
    arguments = ("--costs", costs, "--rate", "50", "--requests", "200", "--replicas", "2", *FIXED)
    first, second = result_of(*arguments), result_of(*arguments)
    assert first["result"] == second["result"]
    assert first["fleet"] == {"replicas": 2, "router": "least-loaded"}
    assert first["result"]["requests"] == {"sent": 200, "ended": 200, "refused": 0, "late": 0}
    assert first["result"]["seconds"]["itl"]["mean"] == pytest.approx(0.010)
    assert result_of(*arguments, "--seed", "1")["result"] != first["result"]


def test_options_change_the_replica_of_a_file(costs: str) -> None:
    more = ("--max-batch-size", "4", "--kv-cache-memory", "50KiB", "--no-prefix-caching", "--max-queue-size", "7")
    shape = result_of("--costs", costs, "--requests", "5", *FIXED, *more)["replica"]
    assert (shape["max_batch_size"], shape["kv_cache_bytes"], shape["prefix_cache"]) == (4, 50 << 10, False)
    assert (shape["max_queue"], shape["max_num_tokens"]) == (7, 64)


def test_the_least_fleet_is_found(costs: str) -> None:
    arguments = ("--costs", costs, "--rate", "150", "--requests", "1500", *FIXED, "--ttft-limit", "0.1")
    found = result_of(*arguments, "--find-replicas")
    least = found["found"]["replicas"]
    assert least in (2, 3)
    assert found["fleet"]["replicas"] == least
    assert found["result"]["goodput"]["share"] >= 0.99
    printed = run(*arguments, "--find-replicas").output
    assert f"{least} replicas meet the goals" in printed
    impossible = run("--costs", costs, "--requests", "20", *FIXED, "--itl-limit", "0.001", "--find-replicas").output
    assert "not even 1000 replicas would meet the goals" in impossible


def test_people_see_every_figure(costs: str) -> None:
    printed = run("--costs", costs, "--requests", "50", *FIXED, "--tenants", "3").output
    for words in ("1 replica with 8 sequences", "50 of 50 requests ended", "TTFT ms", "ITL ms", "e2e ms", "goodput:",
                  "KV cache:", "preemptions", "fairness:", "each step takes 0.01 s"):  # fmt: skip
        assert words in printed, words


def test_a_trace_is_simulated(costs: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"2023-11-16 18:15:{second:02},{30 + second},{5}\n" for second in range(20))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    result = result_of("--costs", costs, "--arrival-file", str(trace))["result"]
    assert result["requests"]["ended"] == 20
    assert result["duration"] == pytest.approx(19.05)


REFUSED: list[tuple[tuple[str, ...], str]] = [
    ((), "needs an engine, a model, or --costs"),
    (("--costs", "COSTS", "pico"), "leave out the model"),
    (("--costs", "COSTS", "--device", "h100"), "leave out the model"),
    (("--costs", "COSTS", "--replicas", "0"), "--replicas must be a whole number from 1 to 1000"),
    (("--costs", "COSTS", "--requests", "0"), "--requests must be a whole number from 1 to 4194304"),
    (("--costs", "COSTS", "--prefix-share", "2"), "--prefix-share must be a number from 0 to 1"),
    (("--costs", "COSTS", "--goal", "0"), "--goal must be a number above 0, up to 1"),
    (("--costs", "COSTS", "--find-replicas"), "--find-replicas needs a goal"),
    (("--costs", "COSTS", *FIXED, "--max-batch-size", "100"), "max_num_tokens must be at least max_batch_size 100"),
    (("--costs", "COSTS", "--measure-seconds", "0"), "--measure-seconds must be above 0"),
    (("--costs", "COSTS"), "requests are longer than the 2048 positions"),
    (("--costs", "none.json"), "cannot be read"),
    (("--costs", "COSTS", "--router", "magic"), "is not one of"),
]


@pytest.mark.parametrize(("arguments", "fault"), REFUSED)
def test_wrong_options_are_refused(costs: str, arguments: tuple[str, ...], fault: str) -> None:
    assert fault in fault_of(*(costs if word == "COSTS" else word for word in arguments))


def test_an_engine_is_measured_and_saved(pico_engine: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    arguments = (str(pico_engine), "--kv-cache-memory", "8MiB", "--max-batch-size", "2", "--max-num-tokens", "32",
                 "--threads", "1", "--measure-seconds", "0.1", "--requests", "5", *FIXED)  # fmt: skip
    measured = result_of(*arguments, "--save-costs", str(saved))
    again = result_of("--costs", str(saved), "--requests", "5", *FIXED)
    assert again["result"] == measured["result"]
    assert again["replica"] == measured["replica"]
    assert "leave out quantize" in fault_of(*arguments, "--quantize", "int8")
    assert "--memory and --tensor-parallel are for a predicted device" in fault_of(*arguments, "--memory", "1GiB")


def test_an_engine_is_predicted_for_a_device(pico_engine: Path) -> None:
    found = result_of(str(pico_engine), "--device", "h100", "--rate", "20", "--requests", "50", *FIXED)
    assert "predicted on NVIDIA H100" in found["costs"]["source"]
    assert found["costs"]["spread"] == []
    assert found["result"]["requests"]["ended"] == 50


def estimated(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["estimate", *arguments])


def test_an_estimate_says_how_many_replicas_a_rate_takes(pico_engine: Path) -> None:
    arguments = (str(pico_engine), "--device", "h100", "--prompt", "64", "--tokens", "16", "--rate", "100")
    done = estimated(*arguments, "--ttft-limit", "0.2", "--itl-limit", "0.05", "--json")
    assert done.exit_code == 0, done.output + str(done.exception)
    fleet = json.loads(done.output)["fleet"]
    assert fleet["replicas"] == 1
    assert fleet["result"]["goodput"]["share"] >= fleet["goal"]
    printed = estimated(*arguments, "--ttft-limit", "0.2").output
    assert "Fleet for 100 requests/s" in printed
    assert "1 replica meets the goals" in printed
    assert "fleet" not in json.loads(estimated(str(pico_engine), "--device", "h100", "--json").output)


def test_goals_of_a_fleet_and_its_rate_go_together(pico_engine: Path) -> None:
    alone = estimated(str(pico_engine), "--device", "h100", "--itl-limit", "0.1")
    assert "needs --rate" in alone.output + str(alone.exception)
    aimless = estimated(str(pico_engine), "--device", "h100", "--rate", "5")
    assert "--rate needs a goal" in aimless.output + str(aimless.exception)


def test_more_work_takes_more_replicas(costs: str) -> None:
    """Steps that take twice as long need about twice the replicas."""
    slow = Path(costs).with_name("slow.json")
    write_replica(NewFile(slow, "--save-costs"), SHAPE, replace(fixed_costs(0.020)))
    arguments = ("--rate", "150", "--requests", "1500", *FIXED, "--ttft-limit", "0.2", "--find-replicas")
    fast = result_of("--costs", costs, *arguments)["found"]["replicas"]
    assert result_of("--costs", str(slow), *arguments)["found"]["replicas"] > fast


def test_tenants_have_what_the_command_says(costs: str) -> None:
    tenants = ("--tenant", "product share=1 weight=4 priority=1 deadline=30s", "--tenant", "research share=3")
    arguments = ("--costs", costs, "--rate", "60", "--requests", "400", *FIXED, *tenants)
    product, research = result_of(*arguments)["result"]["tenants"]
    asked = ("name", "share", "weight", "priority", "deadline")
    assert [product[name] for name in asked] == ["product", 1, 4, 1, 30]
    assert [research[name] for name in asked] == ["research", 3, 1, 0, None]
    assert product["sent"] + research["sent"] == 400
    assert 2 < research["sent"] / product["sent"] < 4
    printed = run(*arguments).output
    assert "tenant " in printed
    assert "product" in printed
    assert result_of(*arguments, "--priority-ageing", "30s")["replica"]["ageing_s"] == 30.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("share=1", "must begin with a name"),
        ("a share=0", "share must be a number from 1e-06 to 1e+06, got '0'"),
        ("a weight=x", "weight must be a number from"),
        ("a deadline=-1s", "deadline must be a time such as 30s"),
        ("a speed=1", "once each, NAME=VALUE with share, weight, priority, deadline, got 'speed=1'"),
        ("a share=1 share=2", "once each"),
    ],
)
def test_tenants_that_cannot_be_are_refused(costs: str, text: str, words: str) -> None:
    assert words in fault_of("--costs", costs, "--tenant", text)


def test_tenants_are_said_once(costs: str) -> None:
    assert "leave out --tenants" in fault_of("--costs", costs, "--tenant", "a", "--tenants", "3")
    assert "a name of its own" in fault_of("--costs", costs, "--tenant", "a", "--tenant", "a")
