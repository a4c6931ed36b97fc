"""LLM over a fake engine: results that are streamed, awaited, aborted and shared between threads."""

from __future__ import annotations

import asyncio
import copy
import io
import itertools
import threading
from typing import Any

import pytest

from support.fake_runtime import A, B, FakeEngine, ids
from support.waiting import PATIENCE, wait_until
from tensorwright.errors import OutOfMemoryError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_news import RequestNews
from tensorwright.runtime.requests.sampling_params import SamplingParams


def test_streaming_in_a_thread(llm: LLM) -> None:
    texts = [output.outputs[0].text for output in llm.generate_async("añb", SamplingParams(max_tokens=4))]
    assert texts[-1] == "añb"
    assert all(whole.startswith(part) for part, whole in itertools.pairwise(texts))
    assert not any("\ufffd" in text for text in texts)


def test_streaming_and_awaiting_in_a_loop(llm: LLM) -> None:
    async def stream() -> tuple[list[bool], str, str]:
        handle = llm.generate_async("abcd", SamplingParams(max_tokens=4))
        finished = [output.finished async for output in handle]
        final = await handle  # awaiting after the end gives the same
        others = await asyncio.gather(*(llm.generate_async("xy", SamplingParams(max_tokens=2)) for _ in range(20)))
        return finished, final.outputs[0].text, "".join(output.outputs[0].text for output in others)

    finished, text, others = asyncio.run(stream())
    assert finished[-1]
    assert not any(finished[:-1])
    assert (text, others) == ("abcd", "xy" * 20)


MANY = SamplingParams(n=2, max_tokens=20, logprobs=1, prompt_logprobs=0)


def joined(parts: list[RequestOutput]) -> RequestOutput:
    """What was read piece by piece, as one output."""
    last = copy.deepcopy(parts[-1])
    last.prompt_logprobs = [entry for part in parts for entry in part.prompt_logprobs or ()]
    for whole in last.outputs:
        pieces = [part.outputs[whole.index] for part in parts]
        whole.text = "".join(piece.text for piece in pieces)
        whole.token_ids = [token for piece in pieces for token in piece.token_ids]
        whole.logprobs = [table for piece in pieces for table in piece.logprobs or ()]
    return last


def test_news_joined_are_the_whole(llm: LLM, fake: FakeEngine) -> None:
    """However they are read."""
    handles = [llm.generate_async("añb", MANY) for _ in range(3)]

    async def in_loop() -> list[RequestOutput]:
        return [part async for part in RequestNews(handles[0])]

    late = RequestNews(handles[2])
    read = [asyncio.run(in_loop()), list(RequestNews(handles[1])), [handles[2].result() and late.latest()]]
    for handle, parts in zip(handles, read, strict=True):
        assert joined(parts) == handle.result()
        assert handle.result().outputs[0].text.startswith("añb")
    assert [output.token_ids for output in late.latest().outputs] == [[], []]  # all of it is read


def test_reading_news_costs_what_is_new(llm: LLM, fake: FakeEngine) -> None:
    """Of each token's number, table and text no more is handed out than there is, whatever there was before."""
    taken = {"tokens": 0, "tables": 0, "characters": 0}

    class Noted(list):
        def __init__(self, name: str):
            self.name = name

        def __getitem__(self, part: Any) -> Any:
            found = super().__getitem__(part)
            taken[self.name] += len(found)
            return found

        def __iter__(self) -> Any:
            raise AssertionError(f"all {self.name} were looked at")

    class Text(io.StringIO):
        def read(self, size: int | None = -1, /) -> str:
            found = super().read(size)
            taken["characters"] += len(found)
            return found

        def getvalue(self) -> str:
            raise AssertionError("all of the text was copied")

    fake.gate.clear()
    handle = llm.generate_async(ids(A, B), SamplingParams(max_tokens=100, logprobs=0))
    state = handle._state.completions[0]
    state._token_ids, state._logprobs, state._text = Noted("tokens"), Noted("tables"), Text()
    fake.gate.set()
    for _ in RequestNews(handle):
        pass
    assert taken == {"tokens": 100, "tables": 100, "characters": 100}


def test_news_of_a_failed_request_are_its_error(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    news = RequestNews(handle := llm.generate_async(ids(A, B)))
    fake.fail_request(handle.request_id, "OutOfMemoryError", "no block left")
    wait_until(lambda: news.done)
    for read in (news.latest, lambda: next(iter(news)), lambda: asyncio.run(anext(aiter(news)))):  # type: ignore[arg-type]
        with pytest.raises(OutOfMemoryError, match="no block left"):
            read()
    assert news.abort() is False


def test_a_listener_hears_of_every_change(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A, B), SamplingParams(max_tokens=3))
    calls: list[str] = []
    handle.on_change(lambda: calls.append(threading.current_thread().name))
    assert calls == [threading.current_thread().name]  # at once: what came before is not missed
    assert handle.latest().outputs[0].token_ids == []
    fake.gate.set()
    assert handle.result() == handle.latest()
    wait_until(lambda: len(calls) == 4)  # one token an event
    assert set(calls[1:]) == {"tensorwright-events"}


def test_the_latest_of_a_failed_request_is_its_error(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A, B))
    fake.fail_request(handle.request_id, "OutOfMemoryError", "no block left")
    wait_until(lambda: handle.done)
    with pytest.raises(OutOfMemoryError, match="no block left"):
        handle.latest()


def test_abort_keeps_what_there_is(llm: LLM, fake: FakeEngine) -> None:
    fake.budget = 3
    handle = llm.generate_async(ids(A, B), SamplingParams(max_tokens=100))
    wait_until(lambda: fake.budget == 0)
    assert handle.abort() is True
    output = handle.result(PATIENCE)
    assert output.finished
    assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("abort", [A, B, A])
    assert handle.abort() is False


def test_result_may_time_out(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    fake.gate.set()
    assert handle.result(PATIENCE).finished


def test_cancelling_the_waiting_task_aborts(llm: LLM, fake: FakeEngine) -> None:
    async def cancelled() -> None:
        fake.gate.clear()
        for wait in (lambda handle: handle._finished(), lambda handle: anext(aiter(handle))):
            handle = llm.generate_async(ids(A))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(handle), 0.05)
            assert (await handle).outputs[0].finish_reason == "abort"

    asyncio.run(cancelled())
    assert llm.get_stats()["running"] == 0


def test_leaving_a_loop_early_aborts(llm: LLM, fake: FakeEngine) -> None:
    fake.budget = 2
    handle = llm.generate_async(ids(A), SamplingParams(max_tokens=120))
    for _ in handle:
        break
    assert handle.result(PATIENCE).outputs[0].finish_reason == "abort"


def test_a_loop_closed_under_its_waiter_harms_nobody(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    loop = asyncio.new_event_loop()
    handle = llm.generate_async(ids(A))
    task = loop.create_task(handle._finished())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    fake.gate.set()
    assert handle.result(PATIENCE).finished
    assert llm.generate(ids(B), SamplingParams(max_tokens=1)).outputs[0].token_ids == [B]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_threads_share_one_llm(llm: LLM) -> None:
    texts: dict[int, str] = {}

    def run(number: int) -> None:
        for _ in range(5):
            texts[number] = llm.generate(f"thread {number}", SamplingParams(max_tokens=9)).outputs[0].text

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert {number: text[:8] for number, text in texts.items()} == {n: f"thread {n}" for n in range(8)}
