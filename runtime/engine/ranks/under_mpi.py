"""Finds the ranks of a parallel engine that MPI has started:  mpirun -n 4 tensorwright serve ENGINE

Every process opens the engine. That of rank 0 goes on and serves; the others follow it. MPI's own rule holds for a
process that ends early: mpirun ends all others, and whoever started it starts it again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tensorwright.errors import InvalidOptionError, TensorwrightError
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import EngineOptions
from tensorwright.runtime.engine.ranks.follow import follow
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.ranks.identity import fingerprint, threads_of_rank

LIBRARY = "TENSORWRIGHT_MPI"
"""The environment variable that names the library of MPI."""
_KINDS = (
    (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "libmpi.so.40",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "libmpich.so.12"),
)  # fmt: skip
"""What Open MPI and MPICH say to a process that they start (its rank, their number, that of one machine, and its rank
there), and the name of the library."""


@dataclass(frozen=True)
class MpiPlace:
    """Where a process stands. local: how many ranks run on this machine. local_rank: which of them it is."""

    rank: int
    size: int
    local: int
    library: str
    local_rank: int = 0


def mpi_place(environment: Mapping[str, str]) -> MpiPlace | None:
    """Returns the place of this process; None if MPI has not started it, or has started it alone."""
    for rank, size, local, local_rank, library in _KINDS:
        if rank in environment and size in environment and int(environment[size]) > 1:
            own, count = int(environment[rank]), int(environment[size])
            named, here = environment.get(LIBRARY, library), int(environment.get(local, count))
            # A library that does not say it has filled machine after machine.
            return MpiPlace(own, count, here, named, int(environment.get(local_rank, own % here)))
    return None


def own_rank() -> int | None:
    """Returns the rank of this process among those that MPI has started; None without MPI."""
    place = mpi_place(os.environ)
    return None if place is None else place.rank


def ranks_here(engine: EngineDir) -> int:
    """Returns how many ranks of the engine share the memory of this machine."""
    place = mpi_place(os.environ)
    return engine.config.ranks if place is None else place.local


def require_ranks(engine: EngineDir) -> None:
    """Raises InvalidOptionError if MPI has started another number of processes than the engine has ranks."""
    place = mpi_place(os.environ)
    if place is not None and engine.config.ranks != place.size:
        ranks = engine.config.ranks
        raise InvalidOptionError(
            f"{engine.path}: the engine has {ranks} rank{'s' * (ranks > 1)}, and MPI has started {place.size} "
            "processes; " + (f"say mpirun -n {ranks}" if ranks > 1 else "start it without mpirun")
        )


class MpiStarted:
    """The ranks of an engine under MPI. options: `_runtime.RankOptions` for this process."""

    def __init__(self, engine: EngineDir, runtime: Any, place: MpiPlace, options: EngineOptions):
        config, threads, timeout_s = engine.config, options.threads, float(options.rank_timeout)
        bound = len(os.sched_getaffinity(0)) < (os.cpu_count() or 1)  # mpirun has given each rank its processors
        self.threads = threads if bound else threads_of_rank(threads, place.local)
        self.processors: list[int] = []  # those of the process
        self._ranks = runtime.mpi_ranks(place.library, timeout_s)
        self.options = runtime.RankOptions(
            self._ranks, config.tensor_parallel, config.pipeline_parallel, fingerprint(engine)
        )
        self.group = RankGroup(
            self._ranks, config.tensor_parallel, config.pipeline_parallel, timeout_s, place.local_rank, place.local
        )

    def follow(self, engine: EngineDir, options: EngineOptions) -> NoReturn:
        """Does the part of this rank, and ends the process."""
        try:
            follow(engine, self.group, threads=self.threads, load=options.load, devices=options.devices)
        except TensorwrightError as error:
            print(error, file=sys.stderr)
            sys.stderr.flush()
            os._exit(error.exit_code)  # MPI then ends the other ranks
        del self.options, self.group, self._ranks  # the last use of MPI
        raise SystemExit(0)

    def started(self) -> None:
        """Nothing is left to do."""

    def give_up(self) -> None:
        self._ranks.fail("[ranks] rank 0 could not open the engine")
