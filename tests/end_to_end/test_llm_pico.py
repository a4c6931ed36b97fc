"""LLM and the command over the bundled model's real engine: what the fake engine of tests/runtime cannot show."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, OutOfMemoryError, PromptTooLongError, QueueFullError

pytestmark = pytest.mark.computes(least="avx2")

PROMPTS = ["def read_file(", "import os", "class Node:\n    def __init__(", "# déjà vu 🙂 "]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def llm(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, kv_cache_memory="64MiB", threads=2) as llm:
        yield llm


def test_text_is_the_decoding_of_the_ids(llm: LLM) -> None:
    hot = SamplingParams(temperature=3.0, seed=5, max_tokens=200)  # hot enough for broken UTF-8
    for output in llm.generate(PROMPTS, [GREEDY, hot, GREEDY, hot]):
        completion = output.outputs[0]
        assert completion.text == llm.engine.tokenizer.decode(completion.token_ids)
        assert output.prompt_token_ids == llm.engine.tokenizer.encode(output.prompt or "")


def test_streams_grow_to_the_same_text(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], GREEDY).outputs[0]
    partial = [output.outputs[0] for output in llm.generate_async(PROMPTS[0], GREEDY)]
    assert partial[-1].token_ids == whole.token_ids
    assert all(whole.text.startswith(part.text) for part in partial)

    async def crowd() -> list[str]:
        outputs = await asyncio.gather(*(llm.generate_async(prompt, GREEDY) for prompt in PROMPTS * 8))
        return [output.outputs[0].text for output in outputs]

    assert asyncio.run(crowd()) == [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY)] * 8


def test_seeds_repeat_and_differ(llm: LLM) -> None:
    def text(seed: int | None) -> str:
        return llm.generate(PROMPTS[1], SamplingParams(seed=seed, max_tokens=32)).outputs[0].text

    assert text(1) == text(1)
    assert len({text(1), text(2), text(3), text(None), text(None)}) > 3


def test_stop_tokens_end_a_request(llm: LLM) -> None:
    ids = llm.generate(PROMPTS[0], GREEDY).outputs[0].token_ids
    stopped = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[ids[5]])).outputs[0]
    first = ids.index(ids[5])
    assert stopped.token_ids == ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", ids[5])


def test_logprobs_say_what_greedy_took(llm: LLM) -> None:
    completion = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=8, logprobs=3)).outputs[0]
    assert completion.logprobs is not None
    for token, table in zip(completion.token_ids, completion.logprobs, strict=True):
        assert len(table) == 3
        assert table[token].rank == 1
        assert table[token].logprob == max(entry.logprob for entry in table.values()) <= 0
    sampled = sum(table[token].logprob for token, table in zip(completion.token_ids, completion.logprobs, strict=True))
    assert completion.cumulative_logprob == pytest.approx(sampled)


def test_metrics_and_the_prefix_cache(pico_engine: Path) -> None:
    with LLM(pico_engine, kv_cache_memory="16MiB") as llm:
        long = {"prompt_token_ids": [7 * token % 8192 for token in range(1, 201)]}
        first, second = (llm.generate(long, GREEDY).metrics for _ in range(2))
    assert (first.cached_tokens, second.cached_tokens) == (0, 192)  # whole blocks of 32
    for metrics in (first, second):
        assert metrics.queue_time is not None
        assert metrics.time_to_first_token is not None
        assert metrics.time_per_output_token is not None
        assert 0 <= metrics.queue_time <= metrics.time_to_first_token
        assert metrics.time_per_output_token > 0


def test_threads_and_aborts_leave_nothing_behind(llm: LLM) -> None:
    expected = {prompt: llm.generate(prompt, GREEDY).outputs[0].token_ids for prompt in PROMPTS}
    faults: list[str] = []

    def run(number: int) -> None:
        for turn in range(4):
            prompt = PROMPTS[(number + turn) % len(PROMPTS)]
            doomed = llm.generate_async(prompt, SamplingParams(max_tokens=500, ignore_eos=True))
            if llm.generate(prompt, GREEDY).outputs[0].token_ids != expected[prompt]:
                faults.append(prompt)
            doomed.abort()
            if doomed.result(PATIENCE).outputs[0].finish_reason not in ("abort", "length"):
                faults.append("abort")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not faults
    stats = llm.get_stats()
    assert (stats["running"], stats["waiting"], stats["used_blocks"]) == (0, 0, 0)


def test_limits_are_told_before_work_starts(pico_engine: Path) -> None:
    with pytest.raises(OutOfMemoryError):
        LLM(pico_engine, kv_cache_memory=1000)
    with pytest.raises(InvalidOptionError, match="kv_cache_memory"):
        LLM(pico_engine, kv_cache_memory="plenty")
    with LLM(pico_engine, kv_cache_memory="1MiB", max_batch_size=1, max_queue_size=1) as llm:
        with pytest.raises(PromptTooLongError):
            llm.generate({"prompt_token_ids": [5] * 1500}, GREEDY)  # fits the model, not the cache
        slow = SamplingParams(max_tokens=100, ignore_eos=True)
        with pytest.raises(QueueFullError):
            [llm.generate_async(PROMPTS[1], slow) for _ in range(50)]
        assert len(llm.generate([PROMPTS[1]] * 5, GREEDY)) == 5  # generate waits its turn


def test_a_program_may_end_without_closing(pico_engine: Path) -> None:
    script = (
        "from tensorwright import LLM, SamplingParams\n"
        f"llm = LLM({str(pico_engine)!r}, kv_cache_memory='16MiB')\n"
        "print(llm.generate(['import os'], SamplingParams(max_tokens=4))[0].finished)\n"
        "handle = llm.generate_async('x', SamplingParams(max_tokens=2000, ignore_eos=True))\n"
    )
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_model_directory_is_built_once(pico_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with LLM(pico_model, kv_cache_memory="16MiB", dtype="float32") as first:
        text = first.generate(PROMPTS[0], GREEDY).outputs[0].text
        path = first.engine.path
        assert first.engine.dtype == "float32"
    before = (path / "config.json").stat().st_mtime_ns
    with LLM(pico_model, kv_cache_memory="16MiB", dtype="float32") as second:
        assert second.generate(PROMPTS[0], GREEDY).outputs[0].text == text
    assert (path / "config.json").stat().st_mtime_ns == before


def test_the_command_streams_and_shows(pico_engine: Path) -> None:
    command = [sys.executable, "-P", "-m", "tensorwright.runtime.commands.cli"]
    run = [*command, "run", str(pico_engine), "--prompt", "-", "--max-tokens", "16", "--stats"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, input="def read_file(")
    assert done.stdout.startswith("self")
    assert "tokens/s" in done.stderr
    shown = subprocess.run(
        [*command, "inspect", str(pico_engine), "--json"], capture_output=True, text=True, check=True
    )
    facts = json.loads(shown.stdout)
    assert facts["passes"]["recognise_attention"] == facts["model"]["layers"] == 8
    assert all(choice["taken"] for choice in facts["kernels"])
