"""Engines of several ranks of target tensorrt-rtx, over stand-ins for the GPUs, TensorRT and NCCL: their tokens, what
they give NCCL to do, and what a lost rank, a missing GPU and a failing library do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.fake_nccl import compile_nccl
from support.mpi import LAUNCHERS, answered, launcher_of
from support.places import TESTS
from support.rank_processes import rank_pids
from support.tiny_models import make_variant
from support.waiting import wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import EngineError, InvalidOptionError, MissingDependencyError, RankError
from tensorwright.passes.rewriting.cut import cut_columns
from tensorwright.runtime.engine.tensorrt.communicators import CONNECT

pytest.importorskip("tensorrt_rtx")
gpu_rank = pytest.importorskip("support.gpu_rank")


PROMPTS = [{"prompt_token_ids": [(7 * i + k) % 90 + 3 for i in range(length)]} for k, length in enumerate((3, 21, 9))]
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
LIMITS = {"max_batch_size": 4, "max_num_tokens": 16}
OPTIONS: dict[str, Any] = {"max_prompt_logprob_rows": 2, "kv_cache_memory": "1MiB", "threads": 1}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(the library of NCCL, engine of two ranks in each of two stages, the tokens of target cpu)."""
    from tensorwright import build

    folder = tmp_path_factory.mktemp("gpu-ranks")
    make_variant(folder / "model", "llama", seed=3, head_dim=16)
    shared: dict[str, Any] = {"dtype": "float32", "max_seq_len": 64}
    build(folder / "model", folder / "cpu", accuracy="none", **shared)
    with LLM(folder / "cpu") as llm:
        tokens = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    with pytest.MonkeyPatch.context() as patch:
        parallel = {"tensor_parallel": 2, "pipeline_parallel": 2}
        path = gpu_rank.build_ranks(folder / "model", folder / "gpu", patch.setattr, **shared, **LIMITS, **parallel)
    return compile_nccl(folder), path, tokens


@pytest.fixture
def ranked(built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(engine, tokens, the stand-in of rank 0's driver, the file of NCCL's calls)."""
    library, path, tokens = built
    monkeypatch.setenv("TENSORWRIGHT_NCCL", str(library))
    monkeypatch.setenv("FAKE_NCCL_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_GPUS", "4")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv(*CONNECT)  # which this process would set for all that come after
    monkeypatch.setattr("tensorwright.runtime.engine.ranks.local.FOLLOWER", "support.gpu_rank")
    return path, tokens, gpu_rank.stand_in(path, 0, monkeypatch.setattr), tmp_path / "log"


def tokens_of(llm: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


def test_ranks_have_the_tokens_of_target_cpu_and_start_again_when_one_is_lost(ranked: Any) -> None:
    path, tokens, cuda, log = ranked
    with LLM(path, **OPTIONS) as llm:
        assert tokens_of(llm) == tokens
        calls = [line.split() for line in log.read_text().splitlines()]
        steps = llm.get_stats()["steps"]
        others = rank_pids()
        assert len(others) == 3
        os.kill(others[0], signal.SIGSTOP)
        handle = llm.generate_async(PROMPTS[0], SamplingParams(max_tokens=30, ignore_eos=True))
        os.kill(others[0], signal.SIGKILL)
        with pytest.raises(RankError, match=r"rank \d ended by signal 9"):
            handle.result()
        assert tokens_of(llm) == tokens  # the first who ask wait until all have started again
    assert not cuda.faults
    assert cuda.is_clean()
    wait_until(lambda: not rank_pids(), "the end of all ranks")
    assert not list(Path("/dev/shm").glob(f"fake-nccl-{os.getpid()}-*"))
    check_calls(calls, steps, json.loads((path / "rank2" / "io.json").read_text())["vocab_size"])


def check_calls(calls: list[list[str]], steps: int, vocab: int) -> None:
    """Holds what NCCL was given to do against the plans of two layers in two stages."""
    count = Counter((size, name) for _, size, name, *_ in calls)
    assert count["4", "ncclCommInitRankConfig"] == count["4", "ncclCommSplit"] == 4
    sent = count["4", "ncclSend"]
    assert sent == count["4", "ncclRecv"]
    assert sent % (2 * steps) == 0  # so many values from each rank of the first stage to one of the second
    assert count["2", "ncclAllReduce"] == 2 * steps * (3 + 2)  # embedding, attention and MLP; attention and MLP
    assert count["2", "ncclAllGather"] == 2 * steps
    widths = [end - begin for begin, end in (cut_columns(vocab, 2, rank) for rank in (0, 1))]
    assert widths[0] != widths[1]
    assert all(int(line[3]) % max(widths) == 0 for line in calls if line[2] == "ncclAllGather")  # rows, filled up
    assert {line[4] for line in calls if line[2] in ("ncclAllReduce", "ncclAllGather", "ncclSend")} == {"7"}


def test_an_error_of_nccl_on_one_rank_is_raised_by_its_text(ranked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the ranks start, it keeps the engine from being opened."""
    path, _, cuda, _ = ranked
    monkeypatch.setenv("FAKE_NCCL_FAIL", "2:ncclCommInitRankConfig:1:2")
    with pytest.raises(RankError, match=r"rank 2: NCCL: ncclCommInitRankConfig answers 2, unhandled system error"):
        LLM(path, **OPTIONS)
    assert cuda.is_clean()
    wait_until(lambda: not rank_pids(), "the end of all ranks")


def test_what_is_missing_is_said_before_any_rank_starts(ranked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, cuda, log = ranked
    cuda.devices = 3
    with pytest.raises(MissingDependencyError, match=r"4 ranks on this machine.* 0, 1, 2, 3, and the machine has 3"):
        LLM(path, **OPTIONS)
    with pytest.raises(MissingDependencyError, match=r"GPUs 0, 1, 2, 5"):
        LLM(path, **OPTIONS, devices="0,1,2,5")
    with pytest.raises(InvalidOptionError, match=r"names 2 GPUs, and on this machine run 4 ranks, with a GPU each"):
        LLM(path, **OPTIONS, devices="0,1")
    for wrong in ("0,0,1,2", "0,x", "", "-1"):
        with pytest.raises(InvalidOptionError, match="devices must be numbers of GPUs, none twice"):
            LLM(path, **OPTIONS, devices=wrong)
    cuda.devices = 4
    monkeypatch.setenv("TENSORWRIGHT_NCCL", "/nowhere.so")
    with pytest.raises(MissingDependencyError, match=r"/nowhere\.so does not load"):
        LLM(path, **OPTIONS)
    assert not log.exists()
    assert not rank_pids()


UNDER_MPI = """
import sys
from pathlib import Path
from support.gpu_rank import stand_in
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.engine.ranks.under_mpi import mpi_place
import os
place = mpi_place(os.environ)
assert (place.local, place.local_rank) == (4, place.rank)
stand_in(Path(sys.argv[1]), place.rank, setattr)
with LLM(sys.argv[1], max_prompt_logprob_rows=2, kv_cache_memory="1MiB", threads=1) as llm:
    sampling = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    print(llm.generate({"prompt_token_ids": list(map(int, sys.argv[2:]))}, sampling).outputs[0].token_ids)
"""


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_mpi_starts_ranks_with_gpus(ranked: Any, kind: str) -> None:
    path, tokens, _, log = ranked
    words = [sys.executable, "-c", UNDER_MPI, str(path), *map(str, PROMPTS[0]["prompt_token_ids"])]
    done = answered(*launcher_of(kind), "-n", "4", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tokens[0])  # rank 0 alone goes on with the program
    assert log.read_text().count("ncclCommInitRankConfig") == 4


def test_doctor_says_what_ranks_lack(ranked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorwright.runtime.engine.tensorrt import cuda, executor, library
    from tensorwright.runtime.tools.doctor.engine import examine_engine

    path, _, gpu, _ = ranked
    monkeypatch.setattr(cuda, "load_driver", executor.load_driver)
    monkeypatch.setattr(library, "load_bindings", executor.load_bindings)
    assert [problem["message"] for problem in examine_engine(str(path))["problems"]] == []
    gpu.devices = 3
    (problem,) = examine_engine(str(path))["problems"]
    assert "the engine has 4 ranks on this machine" in problem["message"]


def test_a_machine_needs_the_files_of_its_ranks(ranked: Any, tmp_path: Path) -> None:
    from tensorwright.runtime.engine.engine_dir import open_engine

    shutil.copytree(ranked[0], tmp_path / "engine")
    shutil.rmtree(tmp_path / "engine" / "rank3")
    assert open_engine(tmp_path / "engine", rank=1).weights.name == "tensorrt.engine"
    with pytest.raises(EngineError, match=r"rank3/"):
        open_engine(tmp_path / "engine", rank=3)
