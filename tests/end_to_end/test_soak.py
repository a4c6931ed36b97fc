"""Thousands of requests of every kind against pico: nothing leaks, memory stays flat, survivors equal their solo run.

TENSORWRIGHT_SOAK=5000 runs the full form; the suite runs 160. Small engines of other kinds get half as many each: with
mixtures of experts, with latent attention and mixtures, and with delta rules, whose sequences have states. Half the
requests are drawn from a pool, so that prefixes and whole prompts come again; each is compared with the bits that it
gets alone.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from support.asked_loads import room
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import QueueFullError
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.requests.outputs import RequestOutput

COUNT = int(os.environ.get("TENSORWRIGHT_SOAK", "160"))
WORKERS = 10
RSS_GROWTH = 8 << 20
"""Bytes that memory may grow by after the first quarter. 5,000 requests (52 s on two shared cores): below 1 MB."""

VOCAB = 8192
WORDS = ["def ", "class Node:", "import os\n", "é🙂 ", "return self.", "    for i in range(", "# ", "x = [1, 2, 3]\n"]


class Ask:
    """One request, a function of its seed. Equal seeds are equal requests, apart from the caller's patience."""

    def __init__(self, seed: int, rng: random.Random):
        own = random.Random(seed)
        stem = [(7 * i) % VOCAB for i in range(64)]
        ids = stem[: own.choice([0, 0, 32, 64])] + [own.randrange(VOCAB) for _ in range(own.randrange(1, 24))]
        words = "".join(own.choice(WORDS) for _ in range(own.randrange(1, 8)))
        self.prompt: Any = own.choice([words, {"prompt_token_ids": ids}])
        hot = own.random() < 0.6
        most = own.randrange(1, 20)
        self.params = SamplingParams(
            n=own.choice([1, 1, 1, 2, 3]),
            max_tokens=most,
            min_tokens=own.choice([0, 0, min(most, 4)]),
            temperature=own.choice([0.5, 1.0, 2.0]) if hot else 0.0,
            top_k=own.choice([0, 1, 40]),
            top_p=own.choice([1.0, 0.9, 0.2]),
            seed=seed,
            stop_token_ids=[own.randrange(VOCAB) for _ in range(own.choice([0, 0, 50]))],
            ignore_eos=own.random() < 0.5,
            logprobs=own.choice([None, None, 0, 3]),
            prompt_logprobs=own.choice([None, None, None, 1]),
            priority=own.choice([0, 0, 1]),
            truncate_prompt_tokens=own.choice([None, None, 20]),
            **shaping(own),
            **texts(own),
        )
        self.key = seed
        self.patience = rng.randrange(8) if rng.random() < 0.15 else None
        """Tokens after which the caller cancels; 0: at once."""
        self.streams = rng.random() < 0.5
        self.timeout = rng.choice([0, 0.001, 0.02, 0.2]) if rng.random() < 0.1 else None


def shaping(own: random.Random) -> dict[str, Any]:
    """What looks at the tokens so far, or changes logits; two in three have none."""
    if own.random() < 0.66:
        return {}
    return {
        "min_p": own.choice([0, 0.05]),
        "repetition_penalty": own.choice([1, 1.2]),
        "presence_penalty": own.choice([0, 0.4]),
        "frequency_penalty": own.choice([0, -0.2]),
        "logit_bias": own.choice([None, {own.randrange(VOCAB): 5.0, own.randrange(VOCAB): -float("inf")}]),
        "bad_words": own.choice([[], ["self"], [[own.randrange(VOCAB)]]]),
    }


def texts(own: random.Random) -> dict[str, Any]:
    if own.random() < 0.2:
        return {"detokenize": False}
    return {
        "stop": own.choice([[], [], ["e", "import"], ["\n"]]),
        "include_stop_str_in_output": own.random() < 0.5,
        "skip_special_tokens": own.random() < 0.5,
    }


def answers_of(output: RequestOutput) -> list[Any]:
    """What must be the same bits in any company, per completion; as a hash, so that the test's own memory stays flat.
    None for a completion that was cancelled or late."""
    kept = [
        (c.token_ids, c.text, c.logprobs, c.finish_reason, c.stop_reason, output.prompt_logprobs)
        for c in output.outputs
    ]
    return [None if bits[3] in ("abort", "timeout") else blake2b(repr(bits).encode()).digest() for bits in kept]


def ask_one(llm: LLM, ask: Ask) -> list[Any]:
    while True:
        try:
            handle = llm.generate_async(ask.prompt, replace(ask.params, timeout=ask.timeout))
            break
        except QueueFullError:
            time.sleep(0.002)
    if ask.patience == 0:
        handle.abort()
    if ask.streams or ask.patience:
        for output in handle:
            if ask.patience and len(output.outputs[-1].token_ids) >= ask.patience and not output.finished:
                handle.abort()
    return answers_of(handle.result(PATIENCE))


def resident() -> int:
    """Bytes of anonymous memory that this process holds: mapped weights come and go as the kernel likes."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def crowd(llm: LLM, asks: list[Ask]) -> list[Any]:
    """Several callers at once, each with its share."""
    answers: list[Any] = [None] * len(asks)
    faults: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for i in range(first, len(asks), WORKERS):
                answers[i] = ask_one(llm, asks[i])
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE + COUNT)
    assert not faults, faults[0]
    assert not any(thread.is_alive() for thread in threads)
    return answers


@pytest.mark.timeout(900 + COUNT)
def test_soak(pico_engine: Path) -> None:
    stats = soak(pico_engine, COUNT, 1 << 20, long_at_once=8)
    assert stats["evictions"] > 0
    assert stats["preemptions"] > 0


@pytest.mark.timeout(900 + COUNT)
@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v2_experts", "qwen3_5_text"])
def test_soak_of_other_kinds(engine_of: Callable[[str], Path], kind: str) -> None:
    engine = engine_of(kind)
    if open_engine(engine).state_bytes:  # A sequence with a state has its blocks from the start.
        stats = soak(engine, COUNT // 2, room(engine, 96, 16), state_snapshots=4)
        assert stats["state_snapshot_hits"] > 0
        assert stats["state_snapshots_evicted"] > 0
        assert stats["used_state_slots"] == stats["state_snapshots"]
    else:
        stats = soak(engine, COUNT // 2, room(engine, 8), long_at_once=8)
        assert stats["preemptions"] > 0
        assert stats["evictions"] > 0


def idle(llm: LLM) -> bool:
    stats = llm.get_stats()
    return (stats["used_blocks"], stats["running"], stats["waiting"]) == (0, 0, 0)


def long_asks(count: int) -> list[Ask]:
    """Requests that grow to seven blocks each, and that nobody cancels: short ones preempt on some machines only."""
    asks = [Ask(5000 + i, random.Random(i)) for i in range(count)]
    for i, ask in enumerate(asks):
        ask.prompt = {"prompt_token_ids": [(31 * i + j) % VOCAB for j in range(24)]}
        ask.params = SamplingParams(max_tokens=200, ignore_eos=True, seed=ask.key, temperature=i % 2)
        ask.patience, ask.timeout, ask.streams = None, None, False
    return asks


def soak(engine: Path, count: int, memory: int, long_at_once: int = 0, **more: int) -> dict[str, Any]:
    """Runs `count` requests with a cache of so many bytes, and then so many long ones together; checks what holds for
    every engine. more: options."""
    rng = random.Random(11)
    asks = [Ask(rng.randrange(100) if rng.random() < 0.5 else 1000 + i, rng) for i in range(count)]
    answers, held = [], []
    options = {"threads": 2, "max_batch_size": 8, "max_num_tokens": 48, "max_queue_size": 2, **more}
    started = time.monotonic()
    with LLM(engine, kv_cache_memory=memory, **options) as llm:  # type: ignore[arg-type]
        for quarter in range(4):
            answers += crowd(llm, asks[quarter * count // 4 : (quarter + 1) * count // 4])
            # An answer that a stop string ends is there before the engine has heard of it.
            wait_until(partial(idle, llm), "an engine without requests")
            held.append(resident())
            stats = llm.get_stats()
            assert stats["free_blocks"] + stats["cached_blocks"] == stats["total_blocks"]
            assert all(group["used_blocks"] == 0 for group in stats["groups"])
            assert not llm._client._requests
        asks += long_asks(long_at_once)
        answers += crowd(llm, asks[count:])
        stats = llm.get_stats()
    seconds = time.monotonic() - started
    print(f"\n{count} requests in {seconds:.0f} s; anonymous MB after each quarter: {[m >> 20 for m in held]}; {stats}")
    assert stats["requests_failed"] == 0
    assert stats["requests_timed_out"] > 0
    assert held[-1] - held[0] < RSS_GROWTH
    compare(engine, asks, answers)
    return stats


def compare(engine: Path, asks: list[Ask], answers: list[Any]) -> None:
    """Survivors equal their solo run: one thread, one at a time, nothing cached."""
    alone: dict[int, Any] = {}
    survivors = 0
    with LLM(engine, kv_cache_memory="8MiB", threads=1, max_batch_size=1, enable_prefix_caching=False) as solo:
        for ask, got in zip(asks, answers, strict=True):
            if ask.key not in alone:
                alone[ask.key] = alone_answers(solo, ask)
            for mine, expected in zip(got, alone[ask.key], strict=True):
                if mine is None:
                    assert ask.patience is not None or ask.timeout is not None
                else:
                    assert mine == expected, ask.key
            survivors += None not in got
    assert len(asks) * 0.7 < survivors < len(asks)


def alone_answers(solo: LLM, ask: Ask) -> list[Any]:
    """Each completion as a request of its own, with its seed."""
    seeds = [ask.params.completion_seed(i) for i in range(ask.params.n)]
    return [answers_of(solo.generate(ask.prompt, replace(ask.params, n=1, seed=seed)))[0] for seed in seeds]
