"""LLM over a fake engine: the shapes of prompts and results, what is refused, streaming, abort, failure, shutdown."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import EOS, FakeEngine, fake_module, write_engine
from tensorwright.errors import (
    EngineStoppedError,
    InvalidRequestError,
    OutOfMemoryError,
    PromptTooLongError,
    QueueFullError,
    RequestAbortedError,
)
from tensorwright.runtime import native
from tensorwright.runtime.llm import LLM
from tensorwright.runtime.sampling_params import SamplingParams

A, B, C = 10, 20, 30  # three letters of the byte-level alphabet


def ids(*tokens: int) -> dict[str, Any]:
    return {"prompt_token_ids": list(tokens)}


def test_one_prompt_gives_one_output(llm: LLM) -> None:
    output = llm.generate("héllo", SamplingParams(max_tokens=8))
    assert output.prompt == "héllo"
    assert output.outputs[0].text == "hélloh\ufffd"  # the fake says the prompt again: 6 bytes, then 2 more
    assert output.outputs[0].token_ids == (output.prompt_token_ids * 2)[:8]
    assert (output.finished, output.outputs[0].finish_reason, output.outputs[0].stop_reason) == (True, "length", None)


def test_a_list_gives_a_list_in_order(llm: LLM) -> None:
    outputs = llm.generate(["abc", {"prompt": "xyz"}, ids(A, B)], SamplingParams(max_tokens=3))
    assert [output.outputs[0].text for output in outputs[:2]] == ["abc", "xyz"]
    assert outputs[2].outputs[0].token_ids == [A, B, A]
    assert outputs[2].prompt is None
    assert len({output.request_id for output in outputs}) == 3
    assert llm.generate(["abc"], SamplingParams(max_tokens=1))[0].outputs[0].text == "a"
    assert llm.generate([]) == []


def test_text_beside_ids_is_only_carried_along(llm: LLM) -> None:
    output = llm.generate({"prompt": "shown", "prompt_token_ids": [A]}, SamplingParams(max_tokens=2))
    assert (output.prompt, output.outputs[0].token_ids) == ("shown", [A, A])


def test_params_per_prompt(llm: LLM, fake: FakeEngine) -> None:
    outputs = llm.generate([ids(A), ids(B)], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2]
    with pytest.raises(InvalidRequestError, match=r"one per prompt \(2\), got 1"):
        llm.generate([ids(A), ids(B)], [SamplingParams()])


def test_params_reach_the_engine(llm: LLM, fake: FakeEngine) -> None:
    params = SamplingParams(max_tokens=2, temperature=0.5, top_k=-1, top_p=0.9, seed=7, stop_token_ids=[3], logprobs=1)
    sampling = fake.submitted[llm.generate(ids(A), params).request_id]
    assert vars(sampling) == {
        "max_tokens": 2, "temperature": 0.5, "top_k": 0, "top_p": 0.9, "seed": 7, "stop_token_ids": [3],
        "ignore_eos": False, "eos_token_ids": [EOS], "logprobs": 1, "min_tokens": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": [], "bad_words": [],
        "timeout_s": -1.0, "priority": 0, "n": 1,
    }  # fmt: skip
    assert fake.submitted[llm.generate(ids(A)).request_id].logprobs == -1


def test_max_tokens_none_fills_the_engine(llm: LLM) -> None:
    output = llm.generate(ids(*[A] * 100), SamplingParams(max_tokens=None))
    assert len(output.outputs[0].token_ids) == 28


def test_logprobs_and_metrics(llm: LLM) -> None:
    output = llm.generate(ids(A, B), SamplingParams(max_tokens=2, logprobs=2))
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert [sorted(table) for table in completion.logprobs] == [[0, 1, A], [0, 1, B]]
    entry = completion.logprobs[0][A]
    assert (entry.logprob, entry.rank) == (-1.5, 1)
    assert entry.decoded_token == llm.engine.tokenizer.decode([A])
    assert completion.cumulative_logprob == -3.0
    metrics = output.metrics
    assert (metrics.queue_time, metrics.time_to_first_token, metrics.cached_tokens) == (0.25, 0.5, 0)
    assert metrics.time_per_output_token is not None
    assert metrics.time_per_output_token > 0
    plain = llm.generate(ids(A)).outputs[0]
    assert plain.logprobs is None
    assert plain.cumulative_logprob is None


def test_stop_tokens_and_end_of_sequence(llm: LLM) -> None:
    stopped = llm.generate(ids(A, B, C), SamplingParams(stop_token_ids=[B])).outputs[0]
    assert (stopped.token_ids, stopped.finish_reason, stopped.stop_reason) == ([A, B], "stop", B)
    ended = llm.generate(ids(A, EOS), SamplingParams()).outputs[0]
    assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == ([A, EOS], "stop", None)
    assert ended.text == llm.engine.tokenizer.decode([A])  # the special token is no text
    shown = llm.generate(ids(A, EOS), SamplingParams(skip_special_tokens=False)).outputs[0]
    assert shown.text.endswith("<end>")
    ignored = llm.generate(ids(A, EOS), SamplingParams(ignore_eos=True, max_tokens=4)).outputs[0]
    assert ignored.token_ids == [A, EOS, A, EOS]


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", InvalidRequestError, "at least one token"),
        (ids(), InvalidRequestError, "at least one token"),
        (ids(0, 257), InvalidRequestError, "0 to 256, got 257 at 1"),
        (ids(-1), InvalidRequestError, "got -1 at 0"),
        (ids(True), InvalidRequestError, "got True at 0"),
        ({"prompt_token_ids": "12"}, InvalidRequestError, "list of integers"),
        ({"promt": "x"}, InvalidRequestError, "no key 'promt'; did you mean prompt"),
        ({}, InvalidRequestError, 'the key "prompt"'),
        ({"prompt": 3}, InvalidRequestError, "string"),
        (7, InvalidRequestError, "got int"),
        ("\ud800", InvalidRequestError, "Unicode"),
        (ids(*[A] * 113), PromptTooLongError, "128 tokens.*has 113 and max_tokens is 16"),
        ("x" * 200, PromptTooLongError, "has 200"),
    ],
)
def test_impossible_prompts_start_nothing(llm: LLM, fake: FakeEngine, prompt: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        llm.generate_async(prompt)
    with pytest.raises(error, match=words):
        llm.generate(["fine", prompt])
    assert not fake.submitted


def test_impossible_params_start_nothing(llm: LLM, fake: FakeEngine) -> None:
    for params in (SamplingParams(stop_token_ids=[257]), SamplingParams(logprobs=258), {"max_tokens": 1}):
        with pytest.raises(InvalidRequestError):
            llm.generate_async(ids(A), params)  # type: ignore[arg-type]
    assert not fake.submitted


def test_engine_without_tokenizer(fake: FakeEngine, tmp_path: Path) -> None:
    with LLM(write_engine(tmp_path / "bare", tokenizer=False), kv_cache_memory=1 << 20) as llm:
        params = SamplingParams(detokenize=False, max_tokens=2)
        assert llm.generate(ids(A, B), params).outputs[0].text == ""
        with pytest.raises(InvalidRequestError, match="no tokenizer, so a prompt must be token ids"):
            llm.generate("text", params)
        with pytest.raises(InvalidRequestError, match="detokenize=False"):
            llm.generate(ids(A))


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


def test_abort_keeps_what_there_is(llm: LLM, fake: FakeEngine) -> None:
    fake.budget = 3
    handle = llm.generate_async(ids(A, B), SamplingParams(max_tokens=100))
    wait_until(lambda: fake.budget == 0)
    assert handle.abort() is True
    output = handle.result(5)
    assert output.finished
    assert (output.outputs[0].finish_reason, output.outputs[0].token_ids) == ("abort", [A, B, A])
    assert handle.abort() is False


def test_result_may_time_out(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    fake.gate.set()
    assert handle.result(5).finished


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
    assert handle.result(5).outputs[0].finish_reason == "abort"


def test_a_loop_closed_under_its_waiter_harms_nobody(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    loop = asyncio.new_event_loop()
    handle = llm.generate_async(ids(A))
    task = loop.create_task(handle._finished())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    fake.gate.set()
    assert handle.result(5).finished
    assert llm.generate(ids(B), SamplingParams(max_tokens=1)).outputs[0].token_ids == [B]
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_request_that_fails_here_ends_alone(llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.gate.clear()
    bad = llm.generate_async(ids(A))
    good = llm.generate_async(ids(B), SamplingParams(max_tokens=2))

    def burst(event: Any, now: float) -> None:
        raise RuntimeError("cannot decode")

    monkeypatch.setattr(bad._state, "apply", burst)
    fake.gate.set()
    with pytest.raises(RuntimeError, match="cannot decode"):
        bad.result(5)
    assert good.result(5).outputs[0].token_ids == [B, B]
    assert llm.get_stats()["running"] == 0  # aborted in the engine too


def test_a_request_that_fails_in_the_engine_ends_alone(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    bad, odd, good = (llm.generate_async(ids(token), SamplingParams(max_tokens=1)) for token in (A, B, C))
    fake.fail_request(bad.request_id, "OutOfMemoryError", "no block left")
    fake.fail_request(odd.request_id, "NewKindOfError", "who knows")
    fake.gate.set()
    with pytest.raises(OutOfMemoryError, match="no block left"):
        bad.result(5)
    with pytest.raises(EngineStoppedError, match="NewKindOfError: who knows"):
        odd.result(5)
    assert good.result(5).outputs[0].token_ids == [C]


def test_a_failure_in_generate_aborts_the_others(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    errors: list[Exception] = []

    def run() -> None:
        try:
            llm.generate([ids(A), ids(B)], SamplingParams(max_tokens=50))
        except OutOfMemoryError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: len(fake.submitted) == 2)
    fake.fail_request(min(fake.submitted), "OutOfMemoryError", "none")
    thread.join(5)
    assert errors
    assert llm.get_stats()["running"] == 0


def test_a_full_queue_refuses_or_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeEngine(max_queue=2)
    monkeypatch.setattr(native, "create_engine", lambda *args: fake)
    monkeypatch.setattr(native, "load_module", fake_module)
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm:
        fake.gate.clear()
        waiting = [llm.generate_async(ids(A)) for _ in range(2)]
        with pytest.raises(QueueFullError):
            llm.generate_async(ids(A))
        fake.gate.set()
        assert all(handle.result(5).finished for handle in waiting)
        assert len(llm.generate([ids(A)] * 9, SamplingParams(max_tokens=3))) == 9


def test_threads_share_one_llm(llm: LLM) -> None:
    texts: dict[int, str] = {}

    def run(number: int) -> None:
        for _ in range(5):
            texts[number] = llm.generate(f"thread {number}", SamplingParams(max_tokens=9)).outputs[0].text

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {number: text[:8] for number, text in texts.items()} == {n: f"thread {n}" for n in range(8)}


def test_shutdown_ends_what_runs(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(RequestAbortedError, match="shut down"):
        handle.result(5)
    with pytest.raises(EngineStoppedError, match="shut down"):
        llm.generate(ids(A))
    with pytest.raises(EngineStoppedError, match="shut down"):
        llm.get_stats()


def test_shutdown_with_drain_lets_requests_finish(llm: LLM) -> None:
    handle = llm.generate_async(ids(A), SamplingParams(max_tokens=20))
    llm.shutdown(drain=True, timeout=5)
    assert len(handle.result(5).outputs[0].token_ids) == 20


def test_a_dead_engine_tells_everybody_why(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    fake.death = EngineStoppedError("the loop met a bus error")
    with pytest.raises(EngineStoppedError, match="bus error"):
        handle.result(5)
    with pytest.raises(EngineStoppedError, match="bus error"):
        llm.generate_async(ids(A))


def test_a_dropped_llm_stops_its_engine(fake: FakeEngine, tmp_path: Path) -> None:
    llm = LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB")
    thread = llm._client._thread
    del llm
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    assert fake.stopped


def wait_until(holds: Any, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)
