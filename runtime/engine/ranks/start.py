"""Finds or starts the ranks of a parallel engine, for the process that is rank 0."""

from __future__ import annotations

import os
from typing import Any, Protocol

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import EngineOptions
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.ranks.local import LocalRanks
from tensorwright.runtime.engine.ranks.under_mpi import MpiStarted, mpi_place


class StartedRanks(Protocol):
    """The ranks of an engine that rank 0 is about to open. threads, processors: its own; no processors: the system
    places it. options: `_runtime.RankOptions`. group: the same for an executor in Python."""

    threads: int
    processors: list[int]
    options: Any
    group: RankGroup

    def started(self) -> None:
        """Says that all ranks have opened the engine."""

    def give_up(self) -> None:
        """Ends the other ranks, for rank 0 could not begin."""


def start_ranks(engine: EngineDir, options: EngineOptions, runtime: Any) -> StartedRanks:
    """Returns the ranks of an engine: those of MPI where it has started this process, else processes of this machine.

    A process of MPI that is not rank 0 never returns: it follows rank 0, and exits when that ends. Raises EngineError,
    InvalidOptionError and RankError.
    """
    place = mpi_place(os.environ)
    if place is None:
        return LocalRanks(engine, runtime, options)
    if options.numa == "split":
        raise InvalidOptionError(
            "numa='split': MPI places the ranks that it has started; say mpirun --map-by numa --bind-to numa, and "
            "leave numa out"
        )
    ranks = MpiStarted(engine, runtime, place, options)
    if place.rank > 0:
        ranks.follow(engine, options)
    return ranks
