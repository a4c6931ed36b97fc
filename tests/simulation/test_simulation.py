"""The whole Python edge in a simulation: engine, mailbox, events thread, handles, event loop, server; see world.py."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation.baton import Simulation
from simulation.run import older_objects_set_aside, run_seed
from simulation.world import write_toy_engine
from tensorwright import LLM
from tensorwright.runtime.requests.engine_client import EngineClient
from tensorwright.runtime.requests.request_handle import RequestHandle

SEEDS = int(os.environ.get("TENSORWRIGHT_SIMULATION_SEEDS", "100"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_engine(tmp_path_factory.mktemp("simulation") / "toy")


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    with older_objects_set_aside():
        yield


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """What the runs provoke is logged, with stacks, thousands of times."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_seeds(engine: Path, first: int) -> None:
    """A seed that fails runs again by `python -m simulation.run SEED 1`, in the folder of the tests."""
    failed = {}
    for seed in range(first, first + 50):
        world, trouble = run_seed(seed, engine)
        if trouble:
            failed[seed] = (world.swarm, trouble)
    assert not failed


def test_a_run_can_be_repeated(engine: Path) -> None:
    run_seed(1, engine)  # imports what is imported late, for the lines of that are drawn at, too
    for seed in range(10):
        first, second = (run_seed(seed, engine)[0].simulation for _ in range(2))
        assert (first.history, first.switches, first.now) == (second.history, second.switches, second.now)


def forgets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineClient, "_forget", lambda self, request_id: None)


def wakes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: Any) -> bool:
        self._version += 1
        return False

    monkeypatch.setattr(RequestHandle, "_changed_now", changed)


def looks_for_the_end_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end may slip between; only a switch between two lines finds it."""

    async def finished(self: Any) -> Any:
        while True:
            done = self._done
            seen = self._version
            if done:
                break
            await self._wait_for_change(seen)
        return self.result()

    finished.__code__ = finished.__code__.replace(co_filename=RequestHandle.result.__code__.co_filename)
    monkeypatch.setattr(RequestHandle, "_finished", finished)


LINE_BY_LINE = {
    "kinds": ("await",),
    "at_lines": 0.2,
    "lines_of": "request_handle",
    "reorder": 0.05,
    "by_priority": True,
    "collects": 0.0,
}


@pytest.mark.parametrize(
    ("bug", "changes"),
    [
        (forgets_nobody, {}),
        (wakes_no_thread, {}),
        (
            looks_for_the_end_first,
            LINE_BY_LINE,
        ),
    ],
)
def test_planted_bugs_are_found(
    engine: Path, monkeypatch: pytest.MonkeyPatch, bug: Any, changes: dict[str, Any]
) -> None:
    bug(monkeypatch)
    assert any(run_seed(seed, engine, **changes)[1] for seed in range(100))


def test_an_llm_that_outlives_its_run_is_closed_by_nobody(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end would come in a real thread, in which the locks of the run that is over mean nothing."""
    kept: list[LLM] = []
    generate = LLM.generate_async

    def keep(llm: LLM, *arguments: Any) -> Any:
        kept.append(llm)
        return generate(llm, *arguments)

    monkeypatch.setattr(LLM, "generate_async", keep)
    for seed in range(10):
        world, trouble = run_seed(seed, engine, ending="drop", kinds=("wait",))
        if kept:
            break
    assert "somebody still has the LLM" in trouble
    assert not world.finalizer.alive


def test_a_thread_that_the_end_of_a_run_ended_is_no_actor_any_more() -> None:
    """The system gives its number to the next thread."""
    simulation = Simulation(1)
    simulation.spawn("waits", lambda: simulation.wait(lambda: False))
    simulation.wait(lambda: False, 1.0)
    simulation.close()
    assert simulation._of_thread == {}
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(simulation.me))
    thread.start()
    thread.join()
    assert seen == [None]
