"""Hundreds of requests while ranks are killed and held: nothing hangs or is lost, answers have the undisturbed bits.

TENSORWRIGHT_SOAK=5000 runs so many requests; the suite runs 60. A rank is lost after every KILL_EVERY answers.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from support.rank_processes import alive, ask_until_no_rank_is_lost, rank_files, rank_pids
from support.tiny_models import make_variant
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams, build
from tensorwright.errors import RankError, TemporarilyUnavailableError

COUNT = int(os.environ.get("TENSORWRIGHT_SOAK", "60"))
KILL_EVERY = 20
CALLERS = 6
KINDS = 16
"""How many requests differ."""
OPTIONS = {
    "kv_cache_memory": "1MiB", "threads": 1, "max_batch_size": 4, "max_num_tokens": 24, "rank_timeout": 4.0,
}  # fmt: skip


def request(kind: int) -> tuple[dict[str, list[int]], SamplingParams]:
    own = random.Random(kind)
    stem = list(range(3, 35))[: own.choice([0, 16, 32])]
    prompt = stem + [own.randrange(3, 90) for _ in range(own.randrange(1, 30))]
    params = SamplingParams(
        max_tokens=own.randrange(4, 20), temperature=own.choice([0.0, 0.9]), seed=kind, ignore_eos=True,
        n=own.choice([1, 1, 2]), logprobs=1,
    )  # fmt: skip
    return {"prompt_token_ids": prompt}, params


def bits(output) -> list[tuple]:
    return [(each.token_ids, each.logprobs) for each in output.outputs]


@pytest.mark.timeout(900 + COUNT)
def test_ranks_are_lost_again_and_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_variant(tmp_path / "model", "llama", seed=3)
    build(
        tmp_path / "model", tmp_path / "engine", accuracy="none", max_seq_len=128, tensor_parallel=2,
        pipeline_parallel=2,
    )  # fmt: skip
    with LLM(tmp_path / "engine", **OPTIONS) as llm:
        wanted = answers(llm)
        tally = soak(llm, wanted)
        assert answers(llm) == wanted
        stats = llm.get_stats()
        assert (stats["used_blocks"], stats["running"], stats["waiting"]) == (0, 0, 0)
    wait_until(lambda: not rank_pids(), "the end of all ranks")
    assert not rank_files()
    # A rank that a busy machine holds for too long is lost too.
    losses = sum("another one takes its place" in message for message in caplog.messages)
    print(f"\n{tally}, {losses} losses")
    assert tally["answered"] + tally["lost"] == COUNT
    assert tally["kills"] >= 2
    assert 0 < tally["lost"] <= losses * CALLERS  # a loss costs no more than what ran or came meanwhile


def answers(llm: LLM) -> list[list[tuple]]:
    """Of each kind of request, alone. The last kill, or a busy machine, may lose a rank while it is asked."""
    return [bits(ask_until_no_rank_is_lost(partial(llm.generate, *request(kind)))) for kind in range(KINDS)]


def soak(llm: LLM, wanted: list[list[tuple]]) -> dict[str, int]:
    """Runs COUNT requests by CALLERS threads. Returns how many were answered, were lost and waited, and the kills."""
    tally = {"answered": 0, "lost": 0, "refused": 0, "kills": 0}
    lock, faults, numbers = threading.Lock(), [], iter(range(COUNT))

    def count(what: str) -> int:
        with lock:
            tally[what] += 1
            return tally[what]

    def ask(number: int) -> None:
        kind = number % KINDS
        until = time.monotonic() + PATIENCE
        while True:
            try:
                output = llm.generate_async(*request(kind)).result(PATIENCE)
            except TemporarilyUnavailableError:
                assert time.monotonic() < until
                count("refused")
                time.sleep(0.02)
                continue
            except RankError:
                count("lost")
                return
            assert bits(output) == wanted[kind]
            if count("answered") % KILL_EVERY == 0:
                lose_a_rank(count("kills"))
            return

    def work() -> None:
        try:
            while not faults:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                ask(number)
        except BaseException as fault:
            faults.append(fault)

    callers = [threading.Thread(target=work) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(2 * PATIENCE + COUNT)
    assert not any(caller.is_alive() for caller in callers)
    if faults:
        raise faults[0]
    return tally


def lose_a_rank(number: int) -> None:
    """Kills a rank, or every second time holds one, which is then too late."""
    living = [pid for pid in rank_pids() if alive(pid)]
    if living:
        os.kill(random.Random(number).choice(living), signal.SIGSTOP if number % 2 == 0 else signal.SIGKILL)
