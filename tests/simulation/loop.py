"""An asyncio event loop on the simulation's clock: it polls nothing, and passes the baton on instead."""

from __future__ import annotations

import asyncio
from asyncio import base_events
from collections.abc import Callable
from typing import Any

from simulation.baton import Simulation


class _Selector:
    """What the loop waits with. woken: something was scheduled from another thread."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self.woken = False

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            self._simulation.pause()
        else:
            self._simulation.wait(lambda: self.woken, timeout)
        self.woken = False
        return []


class SimulatedLoop(base_events.BaseEventLoop):
    """Callables for other threads are run by actors, as many as are wanted."""

    def __init__(self, simulation: Simulation):
        super().__init__()
        self._simulation = simulation
        self._selector = _Selector(simulation)

    def time(self) -> float:
        return self._simulation.now

    def _write_to_self(self) -> None:
        self._selector.woken = True

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            try:
                result, error = work(*args), None
            except Exception as raised:
                result, error = None, raised
            self.call_soon_threadsafe(tell, result, error)

        self._simulation.spawn("worker", run)
        return future
