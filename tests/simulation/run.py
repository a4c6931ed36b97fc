"""Runs seeds: `python -m simulation.run FIRST COUNT` in the folder of the tests. A seed that fails is told, with what
went wrong."""

from __future__ import annotations

import gc
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulation.baton import Deadlock
from simulation.world import World, write_toy_engine


@contextmanager
def older_objects_set_aside() -> Iterator[None]:
    """The collector does not look at what is there before: it is no garbage of the runs, and to look through all of it
    would take nearly all their time. Objects that were set aside earlier, as the suite does with its tests, stay so."""
    frozen_before = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if frozen_before:
            gc.collect()
            gc.freeze()


def run_seed(seed: int, engine: Path, **changes: Any) -> tuple[World, list[str]]:
    """The world in its end, and what went wrong in it. changes: to what the seed draws of Swarm."""
    gc.collect()
    world = World(seed, engine, changes)
    gc.disable()  # it comes where the seed says
    try:
        world.run()
    except Deadlock as error:
        return world, [str(error)]
    finally:
        gc.enable()
    return world, world.trouble


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    logging.disable()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, older_objects_set_aside():
        engine = write_toy_engine(Path(folder) / "toy")
        for seed in range(first, first + count):
            world, trouble = run_seed(seed, engine)
            if trouble:
                failed += 1
                print(f"seed {seed}: {world.swarm}", *trouble, sep="\n  ", flush=True)
    print(f"{count} seeds from {first}: {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
