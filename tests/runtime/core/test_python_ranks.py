"""Ranks whose executors are written in Python: each in a thread here, rank 0 with the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.toy_executor import ToyExecutor, collect, continuation, options, sampling
from support.waiting import wait_until
from tensorwright.errors import EngineStoppedError, InvalidOptionError, OutOfMemoryError, RankError, TensorwrightError
from tensorwright.runtime import _runtime

PROMPTS = [[7, 8, 9, 10], [3] * 20, list(range(40))]


class Silent(ToyExecutor):
    """A rank that computes every step, and gives no logits."""

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "gives_logits": False}

    def run(self, step: Any) -> Any:
        logits = super().run(step)
        return None if self.change is None else logits


class Full(Silent):
    def allocate(self, *sizes: Any) -> None:
        raise OutOfMemoryError("no room on this GPU")


def run_both(path: Path, follower: ToyExecutor, work: Callable[[Any, list[str]], Any]) -> tuple[Any, list[str], Any]:
    """Runs rank 1 in a thread and an engine with rank 0. Returns what `work` gives, which gets the engine and what
    rank 1 says at its end, that list, and the executor of rank 0."""
    _runtime.create_rank_memory(str(path), 2)
    first, second = (_runtime.shared_ranks(str(path), rank, 60.0, 0) for rank in (0, 1))
    ended: list[str] = []

    def follow() -> None:
        try:
            _runtime.follow_with(follower, _runtime.RankOptions(second, 2, 1, 5))
        except RankError as error:
            ended.append(str(error))

    thread = threading.Thread(target=follow)
    thread.start()
    leader = ToyExecutor()
    try:
        engine = _runtime.Engine(leader, options(leader, ranks=_runtime.RankOptions(first, 2, 1, 5)))
        result = work(engine, ended)
        engine.shutdown(False)
        del engine  # rank 0 then lets the other one end
    except BaseException:
        first.fail("the test failed")
        raise
    finally:
        thread.join()
    assert follower.closed.is_set()
    return result, ended, leader


def test_a_rank_takes_part_in_every_step_and_gives_no_logits(tmp_path: Path) -> None:
    def work(engine: Any, ended: list[str]) -> Any:
        for i, prompt in enumerate(PROMPTS):
            engine.submit(i, prompt, sampling(12))
        return collect(engine, len(PROMPTS))[0]

    follower = Silent()
    tokens, ended, leader = run_both(tmp_path / "memory", follower, work)
    assert [tokens[i, 0] for i in range(len(PROMPTS))] == [continuation(prompt, 12) for prompt in PROMPTS]
    assert follower.batches == leader.batches
    assert follower.limits == leader.limits
    assert (follower.cache == leader.cache).all()
    assert not ended


def raising(kind: type[Exception], text: str) -> ToyExecutor:
    def hook(step: Any) -> None:
        raise kind(text)

    return Silent(hook=hook)


@pytest.mark.parametrize(
    ("follower", "why"),
    [
        (lambda: raising(RankError, "[ranks] rank 1: NCCL says 6"), r"^\[ranks\] rank 1: NCCL says 6$"),
        (lambda: raising(ValueError, "broken"), r"rank 1 failed: \[executor\] run raised ValueError: broken"),
        (lambda: Silent(change=lambda logits: logits), "rank 1 failed: .*must return None where gives_logits is False"),
        (Full, "rank 1 failed: no room on this GPU"),
    ],
    ids=["ranks", "another", "logits", "memory"],
)
def test_an_error_of_a_rank_is_the_end_of_the_engine(
    tmp_path: Path, follower: Callable[[], ToyExecutor], why: str
) -> None:
    def work(engine: Any, ended: list[str]) -> None:
        engine.submit(0, PROMPTS[0], sampling(12))
        wait_until(lambda: ended, "the end of rank 1")
        with suppress(EngineStoppedError):  # it may have noticed in a step of the first request
            engine.submit(1, PROMPTS[0], sampling(12))
        wait_until(lambda: engine.stopped, "the end of the engine")

    _, ended, leader = run_both(tmp_path / "memory", follower(), work)
    with pytest.raises(RankError, match=why):
        raise RankError(ended[0])
    assert leader.closed.is_set()


def test_what_a_rank_says_of_logits_must_be_a_truth_value() -> None:
    executor = ToyExecutor()
    facts = {**executor.facts(), "gives_logits": 1}
    made = options(executor)
    executor.facts = lambda: facts  # type: ignore[method-assign]
    with pytest.raises(TensorwrightError, match=r"\['gives_logits'\] must be a bool, is 1"):
        _runtime.Engine(executor, made)


def test_all_ranks_get_the_bytes_of_rank_0(tmp_path: Path) -> None:
    _runtime.create_rank_memory(str(tmp_path / "memory"), 3)
    ranks = [_runtime.shared_ranks(str(tmp_path / "memory"), rank, 60.0, 0) for rank in range(3)]
    got: dict[int, bytes] = {}

    def share(rank: int) -> None:
        got[rank] = ranks[rank].share(b"\x00an id\xff" if rank == 0 else b"", 7)

    threads = [threading.Thread(target=share, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == dict.fromkeys(range(3), b"\x00an id\xff")
    with pytest.raises(InvalidOptionError, match="rank 0 must share 7 bytes, got 2"):
        ranks[0].share(b"id", 7)
