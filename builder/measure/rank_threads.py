"""Runs all ranks of a parallel engine in this process, each in a thread of its own, to measure what they compute."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwright.builder.options import BuildOptions
from tensorwright.engine_format.file_names import RANK_PLAN, RANK_WEIGHTS
from tensorwright.errors import RankError

if TYPE_CHECKING:
    from tensorwright.runtime import _runtime

TIMEOUT_S = 600.0
"""How long a rank waits for another: a step of a large model takes long where all ranks share one machine."""


class RankThreads:
    """The ranks of the engine in the folder `engine`. `lead` gives the executor of rank 0."""

    def __init__(self, engine: Path, options: BuildOptions, memory: Path):
        from tensorwright.runtime import _runtime

        self._runtime: Any = _runtime
        self._engine, self._memory = engine, memory
        self._tensor, self._stages = options.tensor_parallel, options.pipeline_parallel
        self._threads = max(1, _runtime.topology()["cores"] // options.ranks)
        _runtime.create_rank_memory(str(memory), options.ranks)
        self._others = [threading.Thread(target=self._follow, args=(rank,)) for rank in range(1, options.ranks)]
        self._executor: _runtime.CpuExecutor | None = None
        self.failed: RankError | None = None

    def start(self) -> None:
        for thread in self._others:
            thread.start()

    def lead(self) -> _runtime.CpuExecutor:
        """Returns the executor of rank 0, which runs steps on all of them. Raises RankError."""
        executor: _runtime.CpuExecutor = self._runtime.CpuExecutor(
            *self._files(0), self._threads, "map", self._options(0)
        )
        return executor

    def end(self) -> None:
        """Waits for all ranks. The executor of rank 0 must be gone, or the ranks must have failed."""
        for thread in self._others:
            thread.join()

    def fail(self, why: str) -> None:
        self._ranks(0).fail(why)

    def _follow(self, rank: int) -> None:
        try:
            self._runtime.follow(*self._files(rank), self._options(rank), self._threads, "map")
        except RankError as error:  # Rank 0 raises it too.
            self.failed = error

    def _files(self, rank: int) -> tuple[str, str]:
        return str(self._engine / RANK_PLAN.format(rank)), str(self._engine / RANK_WEIGHTS.format(rank))

    def _ranks(self, rank: int) -> Any:
        return self._runtime.shared_ranks(str(self._memory), rank, TIMEOUT_S, 0)

    def _options(self, rank: int) -> Any:
        return self._runtime.RankOptions(self._ranks(rank), self._tensor, self._stages, 0)


@contextmanager
def ranks_in_threads(engine: Path, options: BuildOptions) -> Iterator[RankThreads]:
    """Starts all ranks but rank 0, and ends them."""
    with tempfile.TemporaryDirectory(prefix="tensorwright-ranks-") as folder:
        ranks = RankThreads(engine, options, Path(folder) / "memory")
        ranks.start()
        try:
            yield ranks
        except BaseException:
            ranks.fail("[ranks] the measurement was given up")
            raise
        finally:
            ranks.end()
