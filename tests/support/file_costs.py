"""What each test file costs: `make test` keeps it in build/test.xml, and

    .venv/bin/python tests/support/file_costs.py build/test.xml

lists the files that cost most, in processor seconds: those of the worker and of the processes that a test started and
waited for. These hardly depend on what else the machine does, unlike the seconds that went by, which stand beside them.
What tests of a run share, such as an engine, counts for the test that was the first to need it."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from typing import NamedTuple

import pytest

PROPERTY = "cpu_seconds"
SHOWN = 40
STARTED = pytest.StashKey[float]()


class Cost(NamedTuple):
    """The tests of a file; the processor seconds that they took, and the seconds that went by."""

    tests: int = 0
    cpu: float = 0.0
    wall: float = 0.0


def cpu_seconds() -> float:
    """Returns the processor seconds of this process and of those of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[STARTED] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    finally:
        item.user_properties.append((PROPERTY, round(cpu_seconds() - item.stash[STARTED], 3)))


def read_costs(report: str) -> dict[str, Cost]:
    """Returns the costs of the files of a JUnit report of pytest (junit_family=xunit1), the dearest first."""
    costs: dict[str, Cost] = {}
    for case in xml.parse(report).iter("testcase"):
        before = costs.get(case.attrib["file"], Cost())
        cpu = sum(float(p.attrib["value"]) for p in case.iter("property") if p.attrib["name"] == PROPERTY)
        costs[case.attrib["file"]] = Cost(before.tests + 1, before.cpu + cpu, before.wall + float(case.attrib["time"]))
    return dict(sorted(costs.items(), key=lambda item: -item[1].cpu))


def main() -> None:
    costs = read_costs(sys.argv[1])
    print("  tests   cpu s  wall s  file")
    for file, cost in [("all", Cost(*map(sum, zip(*costs.values(), strict=True)))), *list(costs.items())[:SHOWN]]:
        print(f"{cost.tests:7} {cost.cpu:7.1f} {cost.wall:7.1f}  {file}")


if __name__ == "__main__":
    main()
