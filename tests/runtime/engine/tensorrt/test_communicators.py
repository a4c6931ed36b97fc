"""Communicators over the stand-in of NCCL: ranks as threads, what they compute together, and how they fail."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from support.fake_nccl import compile_nccl, meet
from support.waiting import wait_until
from tensorwright.errors import MissingDependencyError, RankError
from tensorwright.plugins.collectives.tensorrt import ALL_GATHER_OP, ALL_REDUCE_OP, RECEIVE_OP, SEND_OP
from tensorwright.runtime import _runtime
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.tensorrt import nccl
from tensorwright.runtime.engine.tensorrt.communicators import ALGORITHM, CONNECT, Communicators

Work = Callable[[Communicators, int], Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nccl(tmp_path_factory.mktemp("nccl"))


@pytest.fixture
def ranks(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs work on every rank of a group, each in a thread; returns what each gave or raised, and the calls noted."""
    monkeypatch.setenv(nccl.LIBRARY, str(library))
    monkeypatch.setenv("FAKE_NCCL_LOG", str(tmp_path / "log"))
    for name, value in (ALGORITHM, CONNECT):
        monkeypatch.setenv(name, value)  # what was set before is set again after the test
        monkeypatch.delenv(name)

    def run(tensor: int, stages: int, work: Work, *, fail: str = "", timeout_s: float = 60.0) -> list[Any]:
        monkeypatch.setenv("FAKE_NCCL_FAIL", fail)
        monkeypatch.setenv("FAKE_NCCL_SPLIT", str(tensor))
        count = tensor * stages
        memory = str(tmp_path / f"memory-{time.monotonic_ns()}")
        _runtime.create_rank_memory(memory, count)
        seats = [_runtime.shared_ranks(memory, rank, timeout_s, 0) for rank in range(count)]
        results: list[Any] = [None] * count

        def one(rank: int) -> None:
            group = RankGroup(seats[rank], tensor, stages, timeout_s, rank, count)
            communicators = Communicators(nccl.load_nccl(), group)
            try:
                communicators.connect()
                with communicators.step():
                    results[rank] = work(communicators, rank)
            except RankError as error:
                results[rank] = error
            finally:
                communicators.close()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    run.log = lambda: [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    run.library = library
    return run


def part(rank: int, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(6).reshape(2, 3) + 10 * rank).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "code"), [(np.float32, "7"), (np.float16, "6"), (ml_dtypes.bfloat16, "9")], ids=["f32", "f16", "bf16"]
)
def test_all_ranks_of_a_stage_get_the_sum(ranks: Any, dtype: Any, code: str) -> None:
    results = ranks(3, 1, lambda own, rank: meet(own, ranks.library, ALL_REDUCE_OP, part(rank, dtype), {}))
    for result in results:
        assert result.dtype == dtype
        assert result.tolist() == (3 * part(0) + 30).tolist()
    calls = [line for line in ranks.log() if line[2] == "ncclAllReduce"]
    assert sorted(calls) == [[str(rank), "3", "ncclAllReduce", "6", code, "-1"] for rank in range(3)]


def test_parts_are_joined_in_the_order_of_ranks(ranks: Any) -> None:
    results = ranks(2, 1, lambda own, rank: meet(own, ranks.library, ALL_GATHER_OP, part(rank), {"ranks": 2}))
    for result in results:
        assert result.tolist() == [part(0).tolist(), part(1).tolist()]


def test_stages_send_to_the_rank_of_the_same_number_and_sum_among_themselves(ranks: Any) -> None:
    def work(own: Communicators, rank: int) -> Any:
        if rank < 2:
            total = meet(own, ranks.library, ALL_REDUCE_OP, part(rank), {})
            return meet(own, ranks.library, SEND_OP, total + rank, {}).shape
        got = meet(own, ranks.library, RECEIVE_OP, np.zeros(2, np.float32), {"columns": 3})
        return meet(own, ranks.library, ALL_REDUCE_OP, got, {})

    results = ranks(2, 2, work)
    assert results[:2] == [(1, 1)] * 2  # what stands for a value that was sent
    first = 2 * part(0) + 10
    assert [result.tolist() for result in results[2:]] == [(2 * first + 1).tolist()] * 2
    moved = sorted(line for line in ranks.log() if line[2] in ("ncclSend", "ncclRecv"))
    assert moved == [
        ["0", "4", "ncclSend", "6", "7", "2"], ["1", "4", "ncclSend", "6", "7", "3"],
        ["2", "4", "ncclRecv", "6", "7", "0"], ["3", "4", "ncclRecv", "6", "7", "1"],
    ]  # fmt: skip
    split = sorted(line for line in ranks.log() if line[2] == "ncclCommSplit")
    assert [(line[3], line[5]) for line in split] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]


def test_stages_of_one_rank_have_one_communicator(ranks: Any) -> None:
    def work(own: Communicators, rank: int) -> Any:
        if rank == 0:
            return meet(own, ranks.library, SEND_OP, part(7), {}).shape
        return meet(own, ranks.library, RECEIVE_OP, np.zeros(2, np.float32), {"columns": 3}).tolist()

    assert ranks(1, 2, work) == [(1, 1), part(7).tolist()]
    assert not [line for line in ranks.log() if line[2] == "ncclCommSplit"]


@pytest.mark.parametrize(("tensor", "wanted"), [(2, None), (3, "Ring")])
def test_the_algorithm_is_fixed_where_the_order_of_a_sum_matters(ranks: Any, tensor: int, wanted: str | None) -> None:
    ranks(tensor, 1, lambda own, rank: None)
    assert os.environ.get(ALGORITHM[0]) == wanted
    assert os.environ[CONNECT[0]] == "0"


def test_an_algorithm_that_somebody_chose_stays(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALGORITHM[0], "Tree")
    ranks(3, 1, lambda own, rank: None)
    assert os.environ[ALGORITHM[0]] == "Tree"


@pytest.mark.parametrize(
    ("fail", "timeout_s", "why"),
    [
        (
            "1:ncclCommInitRankConfig:1:2",
            60.0,
            r"rank 1: NCCL: ncclCommInitRankConfig answers 2, unhandled system error",
        ),
        ("1:ncclAllReduce:2:2", 60.0, r"rank 1: NCCL: ncclAllReduce answers 2, .*\(the stand-in was told to fail\)"),
        ("0:async:1:6", 60.0, r"rank 0: NCCL says 6, remote process exited"),
        ("1:ncclAllReduce:1:-1", 0.5, r"rank [01] waited for others for 0\.5 seconds in a step"),
    ],
    ids=["no communicator", "a call", "later", "never"],
)
def test_a_failure_of_one_rank_is_that_of_all(ranks: Any, fail: str, timeout_s: float, why: str) -> None:
    def work(own: Communicators, rank: int) -> None:
        for _ in range(3):
            meet(own, ranks.library, ALL_REDUCE_OP, part(rank), {})
        if "async" in fail:  # a step that goes on until somebody looks
            wait_until(lambda: own.failed, "the failure")

    results = ranks(2, 1, work, fail=fail, timeout_s=timeout_s)
    for result in results:
        assert isinstance(result, RankError)
        with pytest.raises(RankError, match=why):
            raise result


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_asked(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(nccl.LIBRARY, str(library))
    memory = str(tmp_path / "memory")
    _runtime.create_rank_memory(memory, 2)
    seats = [_runtime.shared_ranks(memory, rank, 0.05, 0) for rank in range(2)]
    lonely = Communicators(nccl.load_nccl(), RankGroup(seats[0], 2, 1, 0.05, 0, 2))
    with pytest.raises(RankError, match=r"ncclCommInitRankConfig has not ended in 0\.5 seconds"):
        lonely.connect()
    lonely.close()
    assert "has not ended" in seats[1].failure  # the other one hears of it when it comes


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({nccl.LIBRARY: "/nowhere/libnccl.so.2"}, r"/nowhere/libnccl\.so\.2 does not load .*\[nccl\]"),
        ({nccl.LIBRARY: "libm.so.6"}, r"libm\.so\.6 is not NCCL, for it lacks a function .*ncclGetVersion"),
        ({"FAKE_NCCL_VERSION": "21703"}, r"is NCCL 2\.17\.3, and ranks need 2\.18 or a later 2.*\[nccl\]"),
        ({"FAKE_NCCL_VERSION": "30000"}, r"is NCCL 3\.0\.0, and ranks need 2\.18 or a later 2"),
    ],
    ids=["absent", "another library", "old", "new"],
)
def test_a_library_that_cannot_be_taken_is_named(
    library: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], why: str
) -> None:
    for name, value in {nccl.LIBRARY: str(library), **environment}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MissingDependencyError, match=why):
        nccl.load_nccl()


def test_the_package_of_nvidia_comes_before_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nvidia" / "nccl" / "lib" / nccl.SONAME
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert nccl.find_library(None) == str(file)
    assert nccl.find_library("/other.so") == "/other.so"


def test_versions_are_read_as_nccl_writes_them() -> None:
    assert nccl.divmod_version(21805) == (2, 18, 5)
    assert nccl.divmod_version(23203) == (2, 32, 3)
