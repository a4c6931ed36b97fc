"""Simulated runs: times that are computed by hand, what is summed up of them, and the steps of a real engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwright.errors import InvalidOptionError, PromptTooLongError
from tensorwright.insight.simulate.find_replicas import find_replicas
from tensorwright.insight.simulate.replica_shape import ReplicaShape, shape_of_engine
from tensorwright.insight.simulate.run_fleet import FleetRun, run_fleet
from tensorwright.insight.simulate.step_costs import fixed_costs
from tensorwright.insight.simulate.summary import Goals, good_requests, summarise
from tensorwright.insight.simulate.tenants import Tenant
from tensorwright.insight.simulate.traffic import Traffic, make_traffic
from tensorwright.options.simulate import ROUTERS, TrafficFields
from tensorwright.runtime import _runtime
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.options import EngineOptions
from tensorwright.runtime.engine.trace_file import SHARE, STEP

MS = 1_000_000
SHAPE = ReplicaShape(
    max_seq_len=4096, block_size=16, block_bytes=(100,), group_windows=(0,), kv_cache_bytes=100 * 4096,
    max_batch_size=8, max_num_tokens=64, max_chunk=64, max_queue=1000, prefix_cache=True,
)  # fmt: skip


TENANTS = (Tenant("a"), Tenant("b"))


def traffic(*requests: tuple[float, int, int], tenants: list[int] | None = None) -> Traffic:
    """Requests as (milliseconds, tokens of prompt, tokens of answer)."""
    times, prompts, outputs = zip(*requests, strict=True)
    zeros = np.zeros(len(requests), np.int32)
    return Traffic(
        (np.array(times) * MS).astype(np.int64), np.array(prompts, np.int32), np.array(outputs, np.int32), zeros, zeros,
        np.arange(len(requests), dtype=np.int32), zeros if tenants is None else np.array(tenants, np.int32),
        known=TENANTS,
    )  # fmt: skip


def test_figures_of_a_run_are_those_by_hand() -> None:
    """Steps of 10 ms begin at 0, 10, 20 and 45 ms."""
    run = run_fleet(SHAPE, fixed_costs(0.010), traffic((0, 5, 3), (5, 7, 2), (45, 5, 1), tenants=[0, 0, 1]))
    assert run.first.tolist() == [10 * MS, 20 * MS, 55 * MS]
    assert run.ended.tolist() == [30 * MS, 30 * MS, 55 * MS]
    figures = summarise(run, Goals(ttft=0.012))
    assert figures["requests"] == {"sent": 3, "ended": 3, "refused": 0, "late": 0}
    assert figures["duration"] == pytest.approx(0.055)
    assert figures["seconds"]["ttft"]["mean"] == pytest.approx((10 + 15 + 10) / 3e3)
    assert figures["seconds"]["queue"]["mean"] == pytest.approx((0 + 5 + 0) / 3e3)
    assert figures["seconds"]["request"]["p50"] == pytest.approx(0.025)
    assert figures["seconds"]["itl"]["mean"] == pytest.approx(0.010)
    assert figures["seconds"]["itl"]["p99"] == pytest.approx(0.010, rel=0.0026)
    assert figures["per_second"]["output_tokens"] == pytest.approx(6 / 0.055)
    assert figures["goodput"] == {"share": pytest.approx(2 / 3), "per_second": pytest.approx(2 / 0.055)}
    assert figures["busy"]["mean"] == pytest.approx(40 / 55)
    assert (figures["preemptions"], figures["steps"]) == (0, 4)
    # Tenant 0 has 30 / 3 and 25 / 2 ms per token, tenant 1 has 10: means of 11.25 and 10.
    assert figures["fairness"]["worst_over_best"] == pytest.approx(1.125)
    assert figures["fairness"]["jain"] == pytest.approx(21.25**2 / (2 * (11.25**2 + 100)))


def shares_of_tokens(run: FleetRun, seconds: float) -> list[int]:
    """Returns the tokens that each tenant's requests which ended by `seconds` have."""
    done = (run.ended >= 0) & (run.ended <= seconds * 1e9)
    return [int(run.generated[done & (run.traffic.tenants == number)].sum()) for number in range(3)]


def test_tenants_have_their_weights_priorities_and_deadlines() -> None:
    """Places for 8 requests of 10 tokens, 10 ms a step, and all requests at once: what starts is the scheduler's."""
    tenants = [number % 2 for number in range(400)]
    flood = traffic(*[(0, 4, 10)] * 400, tenants=tenants)
    fair = run_fleet(SHAPE, fixed_costs(0.010), replace(flood, known=(Tenant("a"), Tenant("b"))))
    heavy = run_fleet(SHAPE, fixed_costs(0.010), replace(flood, known=(Tenant("a", weight=3.0), Tenant("b"))))
    first = run_fleet(SHAPE, fixed_costs(0.010), replace(flood, known=(Tenant("a"), Tenant("b", priority=1))))
    assert shares_of_tokens(fair, 2.0)[0] == pytest.approx(shares_of_tokens(fair, 2.0)[1], rel=0.15)
    assert shares_of_tokens(heavy, 2.0)[0] == pytest.approx(3 * shares_of_tokens(heavy, 2.0)[1], rel=0.15)
    assert shares_of_tokens(first, 2.0)[0] == 0
    # After an ageing of 0.5 s a request of the lower priority is as good as the others.
    aged = replace(SHAPE, ageing_s=0.5)
    old = run_fleet(aged, fixed_costs(0.010), replace(flood, known=(Tenant("a"), Tenant("b", priority=1))))
    assert shares_of_tokens(old, 2.0)[0] > 0

    late = run_fleet(SHAPE, fixed_costs(0.010), replace(flood, known=(Tenant("a"), Tenant("b", deadline=1.0))))
    figures = summarise(late, Goals())
    a, b = figures["tenants"]
    assert (a["sent"], a["ended"], a["late"], a["good"]) == (200, 200, 0, 1.0)
    assert b["ended"] + b["late"] == b["sent"] == 200
    assert 0 < b["ended"] < 150
    assert b["good"] == b["ended"] / 200
    assert figures["requests"]["late"] == b["late"]
    assert late.ended[flood.tenants == 1].max() <= 1.0e9
    assert (b["name"], b["deadline"], b["seconds"]["ttft"]["p99"] <= 1.0) == ("b", 1.0, True)


def test_a_late_request_alone_ends_and_the_next_one_runs() -> None:
    alone = replace(traffic((0, 4, 10), (5, 4, 10), (500, 4, 2)), known=(Tenant("a", deadline=0.0),))
    run = run_fleet(SHAPE, fixed_costs(0.010), alone)
    assert run.late.tolist() == [1, 1, 1]
    assert run.replica.tolist() == [0, 0, 0]


def test_a_request_is_good_within_all_goals() -> None:
    """The second request's prompt of 100 tokens takes two steps, and between its tokens there are 10 ms."""
    run = run_fleet(SHAPE, fixed_costs(0.010), traffic((0, 5, 3), (1, 100, 3)))
    assert run.first.tolist() == [10 * MS, 30 * MS]
    assert good_requests(run, Goals()).tolist() == [True, True]
    assert good_requests(run, Goals(ttft=0.015)).tolist() == [True, False]
    assert good_requests(run, Goals(ttft=0.015, itl=0.009)).tolist() == [False, False]
    assert good_requests(run, Goals(itl=0.011)).tolist() == [True, True]


def test_refused_requests_are_not_good_and_have_no_times() -> None:
    small = replace(SHAPE, max_batch_size=1, max_queue=1)
    run = run_fleet(small, fixed_costs(0.010), traffic(*[(0, 4, 2)] * 4))
    assert run.replica.tolist() == [0, 0, -1, -1]
    figures = summarise(run, Goals())
    assert figures["requests"] == {"sent": 4, "ended": 2, "refused": 2, "late": 0}
    assert figures["goodput"]["share"] == 0.5
    assert figures["seconds"]["ttft"]["mean"] == pytest.approx(0.020)


def heavy() -> Traffic:
    asked = TrafficFields(
        requests=300, rate=80.0, profile="code", prefix_share=0.5, prefix_len=64, prefixes=6, tenants=3
    )
    return make_traffic(replace(asked, input_len=300, output_len=60), SHAPE.max_seq_len, SHAPE.positions)


@pytest.mark.parametrize("router", ROUTERS)
def test_nothing_is_lost_and_every_run_is_the_same(router: str) -> None:
    requests = heavy()
    tight = replace(SHAPE, kv_cache_bytes=100 * 60)  # sequences are preempted
    costs = replace(fixed_costs(0.004), spread=(0.5, 1.0, 1.5))
    runs = [run_fleet(tight, costs, replace(requests, seed=seed), replicas=3, router=router) for seed in (1, 1, 2)]
    for run in runs:
        assert (run.generated == requests.outputs).all()
        assert ((requests.arrivals <= run.started) & (run.started < run.first) & (run.first <= run.ended)).all()
        assert sum(replica["finished"] for replica in run.replicas) == len(requests)
        assert run.gaps["count"] == int((requests.outputs - 1).sum()) == run.gaps["counts"].sum()
        assert all(replica["used_blocks"] == 0 for replica in run.replicas)
        assert sum(replica["preemptions"] for replica in run.replicas) > 0
        assert set(run.replica.tolist()) == {0, 1, 2}
    assert runs[0].ended.tolist() == runs[1].ended.tolist() != runs[2].ended.tolist()


def test_prefix_affinity_finds_more_prefixes_than_turns() -> None:
    asked = TrafficFields(requests=200, rate=20.0, profile="fixed", input_len=100, output_len=4, prefix_share=1.0,
                          prefixes=40, prefix_len=96)  # fmt: skip
    requests = make_traffic(asked, SHAPE.max_seq_len, SHAPE.positions)
    shares = {
        router: summarise(run_fleet(SHAPE, fixed_costs(0.001), requests, replicas=8, router=router), Goals())
        for router in ("round-robin", "prefix")
    }
    assert shares["prefix"]["prefix_hit_rate"] > 2 * shares["round-robin"]["prefix_hit_rate"] > 0


def test_turns_of_agents_find_the_turns_before() -> None:
    """A turn that comes when the one before has ended finds all full blocks of its prompt, and of the common beginning
    a first turn does."""
    asked = TrafficFields(requests=60, rate=2.0, profile="agent", input_len=300, output_len=8)
    requests = make_traffic(asked, SHAPE.max_seq_len, SHAPE.positions)
    done = run_fleet(SHAPE, fixed_costs(0.0001), requests)
    assert {*requests.prefix_tokens.tolist()} == {200}
    latest: dict[int, int] = {}
    for index, conversation in enumerate(requests.conversations.tolist()):
        same = requests.prompts[latest[conversation]] if conversation in latest else 200 if index else 0
        assert done.cached[index] == same // SHAPE.block_size * SHAPE.block_size
        latest[conversation] = index
    assert len(latest) < 60


def test_more_replicas_are_found_for_more_requests() -> None:
    """Each request needs 10 steps of 10 ms, and a replica runs 8 at once: 80 requests per second at most."""
    found = []
    for rate in (20.0, 150.0):
        asked = TrafficFields(requests=1500, rate=rate, profile="fixed", input_len=4, output_len=10)
        requests = make_traffic(asked, SHAPE.max_seq_len, SHAPE.positions)

        def share(replicas: int, requests: Traffic = requests) -> float:
            run = run_fleet(SHAPE, fixed_costs(0.010), requests, replicas=replicas)
            return float(good_requests(run, Goals(ttft=0.1)).mean())

        found.append(find_replicas(share, 0.99))
    assert found[0].replicas == 1
    assert found[1].replicas in (2, 3)
    least = found[1].replicas
    assert found[1].tried[least] >= 0.99 > found[1].tried[least - 1]


def test_a_search_asks_for_each_number_once_and_says_when_none_is_enough() -> None:
    asked: list[int] = []

    def share(replicas: int) -> float:
        asked.append(replicas)
        return 1.0 if replicas >= 37 else 0.0

    assert find_replicas(share, 0.5, most=50).replicas == 37
    assert len(asked) == len(set(asked))
    nothing = find_replicas(lambda replicas: 0.2, 0.5, most=50)
    assert nothing.replicas is None
    assert max(nothing.tried) == 50


def test_what_cannot_be_simulated_is_refused() -> None:
    one = traffic((0, 5, 3))
    with pytest.raises(InvalidOptionError, match="1 to 1000 replicas, got 1001"):
        run_fleet(SHAPE, fixed_costs(0.01), one, replicas=1001)
    with pytest.raises(InvalidOptionError, match="a nanosecond at least"):
        run_fleet(SHAPE, fixed_costs(0.0), one)
    with pytest.raises(InvalidOptionError, match="all replicas together must have at most"):
        run_fleet(replace(SHAPE, kv_cache_bytes=100 << 20), fixed_costs(0.01), one, replicas=1000)
    with pytest.raises(PromptTooLongError, match="at most the engine's max_seq_len 4096"):
        run_fleet(SHAPE, fixed_costs(0.01), traffic((0, 4096, 3)))
    with pytest.raises(InvalidOptionError, match="keep_steps is for one replica"):
        run_fleet(SHAPE, fixed_costs(0.01), one, replicas=2, keep_steps=True)


def test_a_router_that_fails_ends_the_simulation() -> None:
    options = SHAPE.native_options()
    fixed_costs(0.01).set_on(options)
    requests = traffic((0, 5, 3), (1, 5, 3))
    columns = (
        requests.arrivals, requests.prompts, requests.outputs, requests.prefixes, requests.prefix_tokens,
        requests.conversations, requests.tenants, _runtime.SimulatedTenants([], [], []),
    )  # fmt: skip
    fleet = _runtime.SimulatedFleet(options)

    def choose(index: int) -> int:
        raise RuntimeError(f"no way for {index}")

    with pytest.raises(RuntimeError, match="no way for 0"):
        fleet.run(*columns, choose, lambda index: None)
    with pytest.raises(InvalidOptionError, match="runs once"):
        fleet.run(*columns, lambda index: 0, lambda index: None)


def real_steps(engine: Path, requests: Traffic, options: EngineOptions) -> tuple[np.ndarray, ReplicaShape, Any]:
    """Returns the spans of an engine that runs the requests, all submitted at once, step by step."""
    opened = open_engine(engine)
    native = _runtime.EngineOptions()
    native.kv_cache_bytes, native.max_batch_size = options.kv_cache_bytes, options.max_batch_size
    native.max_num_tokens, native.max_chunk = options.max_num_tokens, options.max_prefill_chunk
    native.max_queue, native.prefix_cache = options.max_queue_size, options.enable_prefix_caching
    native.threads, native.trace_steps, native.debug_stepped = 1, True, True
    running = _runtime.Engine(str(opened.plan), str(opened.weights), native)
    rng = np.random.default_rng(0)
    beginnings = rng.integers(1, opened.vocab_size, (8, 512))
    for i, (length, output) in enumerate(zip(requests.prompts, requests.outputs, strict=True)):
        shared = int(requests.prefix_tokens[i])
        own = rng.integers(1, opened.vocab_size, int(length) - shared)
        sampling = _runtime.Sampling()
        sampling.max_tokens, sampling.temperature, sampling.ignore_eos = int(output), 0.0, True
        prompt = np.concatenate([beginnings[requests.prefixes[i], :shared], own]).astype(np.int32)
        running.submit(i, prompt, sampling)
    while running.turn():
        pass
    ends = {event.request_id: event.finish for event in running.wait_events(0) if event.finish}
    assert ends == dict.fromkeys(range(len(requests)), "length")
    stats = running.stats()
    shape = shape_of_engine(running.facts(), stats, options)
    spans = running.timeline()[0]
    running.shutdown(False)
    return spans, shape, stats


def schedule(spans: np.ndarray) -> list[list[int]]:
    """Returns the steps and the shares in them without their times."""
    kept = spans[np.isin(spans[:, 0], (STEP, SHARE))]
    return kept[:, [0, 3, 4, 5, 6, 7, 8]].tolist()


@pytest.mark.parametrize("blocks", [200, 22])
def test_the_simulated_schedule_is_that_of_the_real_engine(pico_engine: Path, blocks: int) -> None:
    """Over pico, with chunks of prompts, common beginnings, and, with few blocks, preemptions."""
    asked = TrafficFields(
        requests=24, arrival="burst", profile="code", input_len=150, output_len=30, prefix_share=0.5, prefixes=2,
        prefix_len=70, seed=5,
    )  # fmt: skip
    requests = make_traffic(asked, 2048, 2048)
    block = open_engine(pico_engine).kv_block_bytes
    options = EngineOptions(
        kv_cache_bytes=blocks * block, max_batch_size=6, max_num_tokens=64, max_prefill_chunk=40,
        max_prompt_logprob_rows=1, threads=1, load="map", enable_prefix_caching=True, max_queue_size=100,
    )  # fmt: skip
    spans, shape, stats = real_steps(pico_engine, requests, options)
    run = run_fleet(shape, fixed_costs(0.001), requests, keep_steps=True)
    assert run.steps is not None
    assert schedule(run.steps) == schedule(spans)
    for name in ("preemptions", "prefix_hit_tokens", "prefill_tokens", "decode_tokens", "steps", "evictions"):
        assert run.replicas[0][name] == stats[name], name
    assert stats["prefix_hit_tokens"] > 0
    assert (stats["preemptions"] > 0) == (blocks == 22)


def test_a_run_holds_what_is_said_of_it() -> None:
    run = run_fleet(SHAPE, fixed_costs(0.01), heavy(), replicas=2)
    assert isinstance(run, FleetRun)
    for column in (run.replica, run.started, run.first, run.ended, run.cached, run.generated, run.gap):
        assert column.shape == (300,)
    assert len(run.replicas) == 2
    assert run.steps is None
