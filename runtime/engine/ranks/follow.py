"""The process of one rank of a parallel engine: it does its part of what rank 0 computes, until that ends.

python -m tensorwright.runtime.engine.ranks.follow ENGINE --rank N --memory FILE ...      local.py starts it
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

from tensorwright.errors import TensorwrightError
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.executors import EXECUTORS, Opening
from tensorwright.runtime.engine.ranks.devices import devices_here
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.runtime.engine.ranks.identity import fingerprint

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Lets the system end this process when the process of rank 0 ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        raise SystemExit(0)


def follow(engine: EngineDir, group: RankGroup, *, threads: int, load: str, devices: str | None = None) -> None:
    """Does the part of the rank that `group` is of until rank 0 ends. Raises RankError, EngineError and others.

    devices: the option of that name.
    """
    from tensorwright.runtime import _runtime

    options = _runtime.RankOptions(group.ranks, group.tensor, group.stages, fingerprint(engine))
    if engine.target not in EXECUTORS:
        _runtime.follow(str(engine.plan), str(engine.weights), options, threads, load)
        return
    device = devices_here(devices, group.here)[group.local]
    executor = EXECUTORS[engine.target].open(engine, Opening(threads, device, group))
    try:
        _runtime.follow_with(executor, options)
    finally:
        executor.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine")
    for name in ("rank", "threads", "spins", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("memory", "load"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--processors", type=int, nargs="*", default=[])
    parser.add_argument("--devices")
    asked = parser.parse_args()
    end_with_parent(asked.parent)
    if asked.processors:  # all threads and all memory of the process are then near them
        os.sched_setaffinity(0, asked.processors)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which then ends the others
    from tensorwright.runtime import _runtime

    ranks = _runtime.shared_ranks(asked.memory, asked.rank, asked.timeout, asked.spins)
    try:
        engine = open_engine(asked.engine, rank=asked.rank)
        config = engine.config
        group = RankGroup(
            ranks, config.tensor_parallel, config.pipeline_parallel, asked.timeout, asked.rank, config.ranks
        )
        follow(engine, group, threads=asked.threads, load=asked.load, devices=asked.devices)
    except TensorwrightError as error:
        ranks.fail(f"[ranks] rank {asked.rank} failed: {error}")
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
