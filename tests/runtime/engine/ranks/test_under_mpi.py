"""Ranks that MPI starts: the answer is that of ranks which are processes of one program, under either kind of MPI."""

from __future__ import annotations

import sys

import pytest

from support.mpi import LAUNCHERS, answered, launcher_of
from support.tiny_models import make_variant
from tensorwright import build
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.ranks.under_mpi import MpiPlace, mpi_place, require_ranks

PROGRAM = """
import sys
from tensorwright import LLM, SamplingParams
with LLM(sys.argv[1], kv_cache_memory="8MiB", threads=1) as llm:
    sampling = SamplingParams(max_tokens=9, temperature=0, logprobs=1)
    output = llm.generate({"prompt_token_ids": list(range(3, 60))}, sampling)
print(output.outputs[0].token_ids, output.outputs[0].logprobs)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("mpi")
    make_variant(root / "model", "llama", seed=3)
    build(root / "model", root / "engine", accuracy="none", max_seq_len=128, tensor_parallel=2, pipeline_parallel=2)
    return root / "engine"


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_mpi_starts_the_ranks(engine, kind) -> None:
    launcher, *options = launcher_of(kind)
    alone = answered(sys.executable, "-c", PROGRAM, str(engine))
    assert alone.returncode == 0, alone.stderr
    together = answered(launcher, "-n", "4", *options, sys.executable, "-c", PROGRAM, str(engine))
    assert together.returncode == 0, together.stderr
    assert together.stdout == alone.stdout  # rank 0 alone goes on with the program
    wrong = answered(launcher, "-n", "2", *options, sys.executable, "-c", PROGRAM, str(engine))
    assert wrong.returncode != 0
    assert "the engine has 4 ranks, and MPI has started 2 processes; say mpirun -n 4" in wrong.stderr


def test_places() -> None:
    assert mpi_place({}) is None
    assert mpi_place({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None  # alone: no other ranks
    found = mpi_place({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert found == MpiPlace(3, 8, 4, "libmpi.so.40", 3)
    assert mpi_place({"PMI_RANK": "1", "PMI_SIZE": "2"}) == MpiPlace(1, 2, 2, "libmpich.so.12", 1)
    assert mpi_place({"PMI_RANK": "1", "PMI_SIZE": "2", "TENSORWRIGHT_MPI": "/x.so"}) == MpiPlace(1, 2, 2, "/x.so", 1)
    local = {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"}  # ranks that go from machine to machine in turn
    assert mpi_place({"PMI_RANK": "2", "PMI_SIZE": "4", **local}) == MpiPlace(2, 4, 2, "libmpich.so.12", 1)


def test_as_many_processes_as_ranks(engine, monkeypatch) -> None:
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidOptionError, match="the engine has 4 ranks, and MPI has started 3 processes"):
        require_ranks(open_engine(engine))
