"""Runs the ranks of a parallel engine as processes of this machine, which talk through shared memory.

The process that opens the engine is rank 0. It starts the others, watches them, and tells all of them when one ends. A
rank ends when rank 0 closes the engine, or ends itself.
"""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from tensorwright.errors import EngineError, reason
from tensorwright.runtime.base.other_python import environment, interpreter
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import EngineOptions
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.ranks.identity import fingerprint, threads_of_rank

FOLLOWER = "tensorwright.runtime.engine.ranks.follow"
"""The module that the process of another rank runs."""
MEMORY = Path("/dev/shm")
"""Where files are memory; another temporary folder stands in for it where a system lacks it."""
SPINS = 2000
"""How often a waiting rank looks before it sleeps, where every rank has a processor: some tens of microseconds."""
LOOK_S = 0.1
"""How often rank 0 looks whether the others live."""
LAST_WORDS = 2000
"""The bytes of a rank's errors that are kept."""
GRACE_S = 2.0
"""How long ranks have to end by themselves after a failure. One that hangs does not."""
EXIT_WAIT_S = 10.0
"""How long the interpreter's exit waits for the ranks of an engine that has been closed."""

_alive: weakref.WeakSet[LocalRanks] = weakref.WeakSet()


def rank_memory() -> Path:
    """Returns a new name for the memory that ranks share."""
    folder = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    return folder / f"tensorwright-ranks-{os.getpid()}-{secrets.token_hex(8)}"


class LocalRanks:
    """The processes of an engine's other ranks. options: `_runtime.RankOptions` for rank 0. group: the same for an
    executor in Python. processors: those of rank 0; empty: the system places it."""

    def __init__(self, engine: EngineDir, runtime: Any, options: EngineOptions):
        """options: its threads are those of all ranks together. Each rank has its own processors with the option numa
        "split", and with "auto" if there are several nodes and a thread for every core; a rank with a GPU never."""
        config, timeout_s = engine.config, float(options.rank_timeout)
        ranks = config.ranks
        self.threads = threads_of_rank(options.threads, ranks)
        enough = ranks * self.threads <= len(os.sched_getaffinity(0))
        self._spins = SPINS if enough else 0
        self._memory = rank_memory()
        runtime.create_rank_memory(str(self._memory), ranks)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[Any] = []
        try:
            own = runtime.shared_ranks(str(self._memory), 0, timeout_s, self._spins)
            self._ranks = own
            tensor, stages = config.tensor_parallel, config.pipeline_parallel
            self.options = runtime.RankOptions(own, tensor, stages, fingerprint(engine))
            self.group = RankGroup(own, tensor, stages, timeout_s, 0, ranks)
            numa = options.numa if engine.target == "cpu" else "off"
            self.processors = runtime.processors_of_rank(numa, 0, ranks, self.threads)
            for rank in range(1, ranks):
                self._start(engine, rank, options, runtime.processors_of_rank(numa, rank, ranks, self.threads))
        except BaseException as error:
            self.give_up()
            if isinstance(error, OSError):
                raise EngineError(f"{engine.path}: a rank cannot be started: {reason(error)}") from error
            raise
        self._watch = threading.Thread(target=self._look_after, name="tensorwright-ranks", daemon=True)
        self._watch.start()
        _alive.add(self)

    def _start(self, engine: EngineDir, rank: int, options: EngineOptions, processors: list[int]) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115  it is read when the process has ended
        arguments = [
            interpreter(), "-P", "-m", FOLLOWER, str(engine.path), "--rank", str(rank), "--memory", str(self._memory),
            "--threads", str(self.threads), "--load", options.load, "--timeout", str(options.rank_timeout),
            "--spins", str(self._spins), "--parent", str(os.getpid()), "--processors", *map(str, processors),
            *(() if options.devices is None else ("--devices", options.devices)),
        ]  # fmt: skip
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env={**os.environ, **environment()}
        )
        self._processes.append(process)
        self._errors.append(errors)

    @property
    def pids(self) -> list[int]:
        """The processes of ranks 1, 2, ..., in order."""
        return [process.pid for process in self._processes]

    def started(self) -> None:
        """All ranks have mapped the memory: its name is no longer needed."""
        self._memory.unlink(missing_ok=True)

    def give_up(self) -> None:
        """Ends ranks that were started for an engine that did not begin."""
        self.started()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _look_after(self) -> None:
        """Tells all ranks when one has ended before its work did, until all have ended."""
        left = dict(enumerate(self._processes, 1))
        end = None
        while left:
            if end is None and self._ranks.failure:
                end = time.monotonic() + GRACE_S
            if end is not None and time.monotonic() > end:
                for process in left.values():
                    process.kill()
            for rank, process in list(left.items()):
                code = process.poll()
                if code is None:
                    continue
                del left[rank]
                if code != 0:
                    self._ranks.fail(f"[ranks] rank {rank} ended{_how(code)}{self._last_words(rank)}")
            time.sleep(LOOK_S)
        for errors in self._errors:
            errors.close()

    def _last_words(self, rank: int) -> str:
        errors = self._errors[rank - 1]
        errors.seek(0, os.SEEK_END)
        errors.seek(max(0, errors.tell() - LAST_WORDS))
        lines = errors.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f": {last}" if last else ""


@atexit.register  # engine_client.py closes the engines before, for it is imported later
def _join_all() -> None:
    """Waits for the threads that watch ranks, which must end before the interpreter does."""
    for ranks in list(_alive):
        ranks._watch.join(EXIT_WAIT_S)


def _how(code: int) -> str:
    return f" by signal {-code}" if code < 0 else f" with exit code {code}"
