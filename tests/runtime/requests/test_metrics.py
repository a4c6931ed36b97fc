"""The names of metrics, and that each is fed by what the engine and its requests tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.toy_engine import ENDLESS
from support.waiting import wait_until
from tensorwright import LLM, RequestOutput, SamplingParams
from tensorwright.errors import EngineStoppedError
from tensorwright.runtime.requests.metrics import (
    COMPLETIONS,
    ENGINE,
    GAUGES_AND_TOTALS,
    ITL,
    OBSERVED,
    OUTPUT,
    PROMPT,
    REASONS,
    TTFT,
    UP,
    VIOLATIONS,
    RequestObserver,
    Sample,
    engine_samples,
)


@pytest.fixture(scope="module")
def llm(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, threads=1, kv_cache_memory="16MiB") as llm:
        yield llm


def test_names_follow_one_form_and_are_unique() -> None:
    metrics = (*GAUGES_AND_TOTALS, *OBSERVED)
    assert len({metric.name for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert re.fullmatch(r"tensorwright_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.help.endswith(".")


def test_a_window_and_a_chunk_of_one_length_have_samples_of_their_own(llm: LLM) -> None:
    stats = llm.get_stats()
    (group,) = stats["groups"]
    stats["groups"] = [{**group, "window": 16, "chunked": chunked} for chunked in (False, True)]
    stats["groups"].append({**group, "window": 16, "sink_tokens": 4})
    stats["groups"].append({**group, "kv_budget": 96})
    labels = [sample.labels for sample in engine_samples(stats) if sample.metric.name == "tensorwright_kv_blocks"]
    windows = [window for ((name, window),) in labels if name == "window"]
    assert windows == ["16", "16 chunked", "16 and 4 first", "0 of 96 kept"]


def test_every_stat_of_the_engine_has_its_sample(llm: LLM) -> None:
    llm.generate("import os", SamplingParams(max_tokens=3, ignore_eos=True))
    stats = llm.get_stats()
    samples = {(sample.metric.name, sample.labels): sample.value for sample in engine_samples(stats)}
    for name, metric in ENGINE.items():
        assert samples[metric.name, ()] == stats[name]
    assert samples[COMPLETIONS.name, (("outcome", "finished"),)] == stats["requests_finished"] >= 1
    assert samples["tensorwright_kv_blocks", (("window", "0"),)] == stats["total_blocks"]
    assert set(GAUGES_AND_TOTALS) == {sample.metric for sample in engine_samples(stats)}


def test_a_stopped_engine_is_down() -> None:
    assert list(engine_samples(None)) == [Sample(UP, 0.0)]
    counts = {"invariant_violations": 1}
    assert list(engine_samples(counts, running=False)) == [Sample(UP, 0.0), Sample(VIOLATIONS, 1.0)]


@pytest.fixture
def observed(toy_engine: Path) -> Iterator[LLM]:
    """Of one test alone: a request of another test may still be told to observers when its answer is there."""
    with LLM(toy_engine, threads=1, kv_cache_memory="32MiB") as made:
        yield made


def test_requests_that_end_are_observed(observed: LLM) -> None:
    llm, seen = observed, list[Sample]()
    llm.add_observer(RequestObserver(seen.append))
    output = llm.generate("import os", SamplingParams(n=2, max_tokens=4, ignore_eos=True, seed=1))
    wait_until(lambda: sum(sample.metric is REASONS for sample in seen) == 2)
    values: dict[str, list[float]] = {}
    for sample in seen:
        values.setdefault(sample.metric.name, []).append(sample.value)
    assert values[PROMPT.name] == [len(output.prompt_token_ids)]
    assert values[OUTPUT.name] == [4.0, 4.0]
    assert values[TTFT.name] == [output.metrics.time_to_first_token]
    assert len(values[ITL.name]) == 6
    assert all(gap >= 0 for gap in values[ITL.name])
    assert Counter(sample.labels for sample in seen if sample.metric is REASONS) == {(("reason", "length"),): 2}
    assert output.metrics.total_time is not None
    assert sum(values[ITL.name]) <= 2 * output.metrics.total_time


def test_an_observer_that_throws_ends_nothing(observed: LLM) -> None:
    llm, calls = observed, list[RequestOutput]()

    def observer(output: RequestOutput, error: BaseException | None) -> None:
        calls.append(output)
        raise RuntimeError("no")

    llm.add_observer(observer)
    for _ in range(2):
        assert llm.generate("a", SamplingParams(max_tokens=2)).finished
    wait_until(lambda: len(calls) == 2)


def test_a_request_that_fails_is_observed_with_its_error_and_the_engine_is_no_longer_running(observed: LLM) -> None:
    llm, seen = observed, list[BaseException | None]()
    assert llm.running
    llm.add_observer(lambda output, error: seen.append(error))
    handle = llm.generate_async("def", SamplingParams(max_tokens=ENDLESS, ignore_eos=True))
    llm.shutdown()
    assert [type(error) for error in seen] == [type(handle.error)] != [type(None)]
    assert not llm.running
    with pytest.raises(EngineStoppedError):
        llm.get_stats()
