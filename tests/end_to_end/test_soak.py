"""Thousands of requests of every kind against pico: nothing leaks, memory stays flat, survivors equal their solo run.

TENSORWRIGHT_SOAK=5000 runs the full form; the suite runs 300. Half the requests are drawn from a pool, so that prefixes
and whole prompts come again; each is compared with the bits that it gets alone.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from tensorwright import LLM, SamplingParams
from tensorwright.errors import QueueFullError
from tensorwright.runtime.outputs import RequestOutput

COUNT = int(os.environ.get("TENSORWRIGHT_SOAK", "300"))
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
        self.params = SamplingParams(
            max_tokens=own.randrange(1, 20),
            temperature=own.choice([0.5, 1.0, 2.0]) if hot else 0.0,
            top_k=own.choice([0, 1, 40]),
            top_p=own.choice([1.0, 0.9, 0.2]),
            seed=seed,
            stop_token_ids=[own.randrange(VOCAB) for _ in range(own.choice([0, 0, 50]))],
            ignore_eos=own.random() < 0.5,
            logprobs=own.choice([None, None, 0, 3]),
            detokenize=own.random() < 0.8,
        )
        self.key = seed
        self.patience = rng.randrange(8) if rng.random() < 0.15 else None
        """Tokens after which the caller cancels; 0: at once."""
        self.streams = rng.random() < 0.5


def answer(output: RequestOutput) -> bytes:
    """What must be the same bits in any company; as a hash, so that the test's own memory stays flat."""
    c = output.outputs[0]
    return blake2b(repr((c.token_ids, c.text, c.logprobs, c.finish_reason, c.stop_reason)).encode()).digest()


def ask_one(llm: LLM, ask: Ask) -> Any:
    """Its answer, None if it was cancelled in time."""
    while True:
        try:
            handle = llm.generate_async(ask.prompt, ask.params)
            break
        except QueueFullError:
            time.sleep(0.002)
    if ask.patience == 0:
        handle.abort()
    if ask.streams or ask.patience:
        for output in handle:
            if ask.patience and len(output.outputs[0].token_ids) >= ask.patience and not output.finished:
                handle.abort()
    output = handle.result(120)
    return None if output.outputs[0].finish_reason == "abort" else answer(output)


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
        thread.join(COUNT)
    assert not faults, faults[0]
    return answers


@pytest.mark.slow
@pytest.mark.timeout(300 + COUNT)
def test_soak(pico_engine: Path) -> None:
    rng = random.Random(11)
    asks = [Ask(rng.randrange(100) if rng.random() < 0.5 else 1000 + i, rng) for i in range(COUNT)]
    answers, memory = [], []
    options = {"threads": 2, "max_batch_size": 8, "max_num_tokens": 48, "max_queue_size": 2}
    started = time.monotonic()
    with LLM(pico_engine, kv_cache_memory="1MiB", **options) as llm:  # type: ignore[arg-type]
        for quarter in range(4):
            answers += crowd(llm, asks[quarter * COUNT // 4 : (quarter + 1) * COUNT // 4])
            memory.append(resident())
            stats = llm.get_stats()
            assert (stats["used_blocks"], stats["running"], stats["waiting"]) == (0, 0, 0)
            assert stats["free_blocks"] + stats["cached_blocks"] == stats["total_blocks"]
            assert not llm._client._requests
    seconds = time.monotonic() - started
    print(
        f"\n{COUNT} requests in {seconds:.0f} s; anonymous MB after each quarter: {[m >> 20 for m in memory]}; {stats}"
    )
    assert stats["requests_failed"] == 0
    assert stats["evictions"] > 0
    assert stats["preemptions"] > 0
    assert memory[-1] - memory[0] < RSS_GROWTH
    compare(pico_engine, asks, answers)


def compare(engine: Path, asks: list[Ask], answers: list[Any]) -> None:
    """Survivors equal their solo run: one thread, one at a time, nothing cached."""
    alone: dict[int, Any] = {}
    survivors = 0
    with LLM(engine, kv_cache_memory="8MiB", threads=1, max_batch_size=1, enable_prefix_caching=False) as solo:
        for ask, got in zip(asks, answers, strict=True):
            if got is None:
                assert ask.patience is not None
                continue
            if ask.key not in alone:
                alone[ask.key] = answer(solo.generate(ask.prompt, ask.params))
            assert got == alone[ask.key], ask.key
            survivors += 1
    assert COUNT * 0.8 < survivors < COUNT
