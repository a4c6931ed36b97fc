"""Many requests at once, whatever ends them: each has its own answer, and nothing is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_triton import Request, TritonError
from support.toy_engine import ENDLESS
from support.triton_models import as_inputs, load
from support.waiting import wait_until
from tensorwright import SamplingParams
from tensorwright.runtime.guided.child_link import STARTING_THREAD
from tensorwright.runtime.guided.reader import THREAD
from tensorwright.runtime.serving.triton.model import TritonPythonModel

CROWD = 64


@pytest.fixture(scope="module")
def crowded(pico_engine: Path) -> Iterator[TritonPythonModel]:
    model = load(pico_engine, cancellation_check_period_ms="1", max_batch_size="16", max_queue_size="64")
    yield model
    model.finalize()


def request(text: str, tokens: int, request_id: str = "", **more: Any) -> Request:
    return Request(as_inputs({"text_input": text, "max_tokens": tokens, "stream": True, **more}, True), request_id)


def text_of(request: Request) -> str:
    return b"".join(response["text_output"][0] for response in request.sender.wait()).decode()


def wait_until_idle(model: TritonPythonModel) -> None:
    def idle() -> bool:
        stats = model.llm.get_stats()
        return not stats["running"] and not stats["waiting"] and not model.exchange._streams

    wait_until(idle, "a model without work")


OTHERS = (THREAD, STARTING_THREAD, "tensorwright-close")
"""Threads that read the vocabulary beside the start, here and in the process for grammars, and that close what the
garbage collector found."""


def threads_of_ours() -> set[threading.Thread]:
    found = (thread for thread in threading.enumerate() if thread.name.startswith("tensorwright-"))
    return {thread for thread in found if thread.name not in OTHERS}


def test_64_streams_have_the_texts_of_the_python_api(crowded: TritonPythonModel) -> None:
    before = threads_of_ours()
    prompts = [f"def f{index}(" for index in range(CROWD)]
    requests = [request(prompt, 12) for prompt in prompts]
    crowded.execute(requests)
    # None for a request. Threads of other models may end meanwhile.
    assert not threads_of_ours() - before
    texts = [text_of(each) for each in requests]
    params = SamplingParams(max_tokens=12, temperature=0)
    assert texts == [output.outputs[0].text for output in crowded.llm.generate(prompts, params)]


def test_a_storm_of_cancellations_and_stops(crowded: TritonPythonModel) -> None:
    """Every third is cancelled by its client, every third stopped by its id, the rest finishes unharmed."""
    requests = [request(f"class C{index}", 40, str(index), return_finish_reason=True) for index in range(48)]
    crowded.execute(requests)
    for index, each in enumerate(requests):
        if index % 3 == 0:
            each.sender.cancelled = True
        elif index % 3 == 1:
            crowded.execute([Request(as_inputs({"stop": True}, True), str(index))])
    params = SamplingParams(max_tokens=40, temperature=0)
    whole = crowded.llm.generate([f"class C{index}" for index in range(48)], params)
    for index, each in enumerate(requests):
        text, expected = text_of(each), whole[index].outputs[0].text
        assert expected.startswith(text)
        if index % 3 == 0:
            assert [error.code for error in each.sender.errors] in ([TritonError.CANCELLED], [])
        else:
            assert each.sender.errors == []
            reason = each.sender.responses[-1]["finish_reason"][0].decode()
            assert reason == whole[index].outputs[0].finish_reason or (reason == "abort" and index % 3 == 1)
            assert reason == "abort" or text == expected
    wait_until_idle(crowded)


def test_a_full_queue_refuses_the_request_alone(crowded: TritonPythonModel) -> None:
    requests = [request("import ", 30) for _ in range(200)]
    crowded.execute(requests)
    codes = []
    for each in requests:
        each.sender.wait()
        codes += [error.code for error in each.sender.errors]
    assert 0 < len(codes) < len(requests)
    assert set(codes) == {TritonError.UNAVAILABLE}
    wait_until_idle(crowded)


class Dying:
    """The engine of a model from the moment when its loop has died."""

    def __init__(self, engine: Any):
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def wait_events(self, timeout: float) -> None:
        raise RuntimeError("a bus error")


def test_a_dead_engine_answers_everybody(toy_engine: Path) -> None:
    model = load(toy_engine, kv_cache_memory="32MiB")
    running = request("abcdef", ENDLESS, min_tokens=ENDLESS)
    model.execute([running])
    running.sender.wait_for_responses(1)
    model.llm._client._engine = Dying(model.llm._client._engine)
    running.sender.wait()
    later = request("abc", 3)
    model.execute([later])
    later.sender.wait()
    for each in (running, later):
        (error,) = each.sender.errors
        assert error.code == TritonError.UNAVAILABLE
        assert "a bus error" in str(error)
    model.finalize()


def test_the_llm_api_model(pico_engine: Path) -> None:
    model = load(pico_engine, batched=False, interface="llmapi")
    values = {"text_input": "import os", "sampling_param_max_tokens": 6, "return_finish_reason": True}
    values |= {"return_stop_reason": True, "sampling_param_return_perf_metrics": True}
    values |= {"return_cumulative_logprob": True, "streaming": True}
    expected = model.llm.generate("import os", SamplingParams(max_tokens=6, temperature=0, logprobs=0)).outputs[0]
    streamed = Request(as_inputs(values, False))
    model.execute([streamed])
    responses = streamed.sender.wait()
    texts = [response["text_output"][0].decode() for response in responses]
    assert texts[-1] == "import os" + expected.text
    assert all(texts[-1].startswith(text) for text in texts)  # each is the whole so far
    assert [response["finish_reason"][0] for response in responses[:-1]] == [b"None"] * (len(responses) - 1)
    last = responses[-1]
    assert (last["finish_reason"][0], last["stop_reason"][0]) == (b"length", b"None")
    assert last["cumulative_logprob"].tolist() == pytest.approx([expected.cumulative_logprob], rel=1e-6)
    assert {"kv_cache_reused_block", "kv_cache_missed_block", "kv_cache_hit_rate"} <= last.keys()
    declared = {tensor.name for tensor in model.interface.outputs}
    assert set(last) <= declared
    model.finalize()
