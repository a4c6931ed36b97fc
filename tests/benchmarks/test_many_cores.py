"""benchmarks/many_cores.py: how threads take tasks, and that real steps are recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]

import many_cores  # noqa: E402

from tensorwright.runtime import _testing  # noqa: E402

FREE: dict[str, Any] = {"node_bytes": 1e12, "core_bytes": 1.0, "remote": 2.0, "line": (0.0, 0.0, 0.0)}


def test_threads_take_their_share_and_then_what_is_left() -> None:
    machine = many_cores.Machine(threads=4, nodes=1, **FREE)
    assert many_cores.simulate([1.0] * 8, machine, 1.0) == 2.0
    assert many_cores.simulate([1.0] * 9, machine, 1.0) == 3.0
    # The last share is long: the others take its second task.
    assert many_cores.simulate([1.0] * 6 + [4.0, 4.0], machine, 1.0) == pytest.approx(6.0, abs=1.0)
    assert many_cores.simulate([3.0], machine, 1.0) == 3.0


def test_bandwidth_and_distance_slow_reads_down() -> None:
    limits = FREE | {"node_bytes": 4.0}
    regions = [[1.0] * 8, [0.5]]
    steps = {}
    for nodes in (1, 2):
        machine = many_cores.Machine(threads=8, nodes=nodes, **limits)
        for split in (False, True):
            steps[nodes, split] = many_cores.step_seconds(regions, machine, split)["step"]
    # Eight threads ask one node for twice what it reads. Half of the reads of two nodes take twice as long.
    assert steps == {(1, False): 2.5, (1, True): 2.5, (2, False): 2.0, (2, True): 1.5}


def test_tasks_of_a_step_are_recorded(pico_engine: Path) -> None:
    files = (str(pico_engine / "cpu/plan.bin"), str(pico_engine / "cpu/weights.bin"))
    few, many = (_testing.task_seconds(*files, threads, 2, 1, 64, 1) for threads in (1, 16))
    assert len(few) == len(many) > 40
    assert sum(map(len, many)) >= sum(map(len, few)) > 3 * len(few)
    assert all(seconds >= 0 for region in many for seconds in region)
    assert len(_testing.region_seconds(2, 8, 10)) == 10
