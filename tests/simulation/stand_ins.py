"""What the modules under test take for `threading` and `time` in a simulation. What is not here is the real thing."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from simulation.baton import Actor, Simulation


class SimulatedTime:
    """time, by the simulation's clock."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return self._simulation.now

    perf_counter = time = monotonic

    def sleep(self, seconds: float) -> None:
        self._simulation.wait(lambda: False, seconds)


class SimulatedThreading:
    """threading, whose threads are actors and whose locks pass the baton on."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self._threads: dict[Actor, Thread] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)

    def Lock(self) -> Lock:
        return Lock(self._simulation, reentrant=False)

    def RLock(self) -> Lock:
        return Lock(self._simulation, reentrant=True)

    def Condition(self, lock: Lock | None = None) -> Condition:
        return Condition(self._simulation, lock or Lock(self._simulation, reentrant=True))

    def Event(self) -> Event:
        return Event(self._simulation)

    def Semaphore(self, value: int = 1) -> Semaphore:
        return Semaphore(self._simulation, value)

    BoundedSemaphore = Semaphore

    def Thread(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        name: str = "thread",
        daemon: bool | None = None,
    ) -> Thread:
        return Thread(self, self._simulation, lambda: target(*args, **(kwargs or {})), name)

    def current_thread(self) -> Any:
        me = self._simulation.me
        return self._threads.get(me, threading.current_thread()) if me is not None else threading.current_thread()

    def started(self, actor: Actor, thread: Thread) -> None:
        self._threads[actor] = thread


class Pool:
    """concurrent.futures.ThreadPoolExecutor, as far as jobs go whose result nobody asks it for."""

    def __init__(self, simulation: Simulation, threads: int):
        self._simulation, self._free, self._open = simulation, threads, True

    def submit(self, work: Callable[[], Any]) -> None:
        if not self._open:
            raise RuntimeError("cannot schedule new futures after shutdown")

        def run() -> None:
            self._simulation.wait(lambda: self._free > 0)
            self._free -= 1
            try:
                work()
            finally:
                self._free += 1

        self._simulation.spawn("worker", run)
        self._simulation.pause()

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        self._open = False


class SimulatedQueues:
    """queue, with its SimpleQueue."""

    def __init__(self, simulation: Simulation):
        self.SimpleQueue = lambda: Queue(simulation)

    def __getattr__(self, name: str) -> Any:
        return getattr(queue, name)


class Queue:
    def __init__(self, simulation: Simulation):
        self._simulation, self._items = simulation, deque[Any]()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._simulation.pause()

    def get(self) -> Any:
        self._simulation.wait(lambda: bool(self._items))
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Thread:
    def __init__(self, of: SimulatedThreading, simulation: Simulation, work: Callable[[], Any], name: str):
        self._of, self._simulation, self._work, self.name = of, simulation, work, name
        self._actor: Actor | None = None

    def start(self) -> None:
        self._actor = self._simulation.spawn(self.name, self._work)
        self._of.started(self._actor, self)
        self._simulation.pause()

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.ended

    def join(self, timeout: float | None = None) -> None:
        self._simulation.wait(lambda: not self.is_alive(), timeout)


class Lock:
    """One that no actor holds can be taken by any; outside a simulation it is always open."""

    def __init__(self, simulation: Simulation, reentrant: bool):
        self._simulation, self._reentrant = simulation, reentrant
        self.holder: Any = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._simulation.me
        if me is None:
            return True
        self._simulation.pause()
        if self._reentrant and self.holder is me:
            self.depth += 1
            return True
        wait = None if timeout < 0 else timeout
        if self.holder is not None and not (blocking and self._simulation.wait(lambda: self.holder is None, wait)):
            return False
        self.holder, self.depth = me, 1
        return True

    def release(self) -> None:
        if self._simulation.me is None:
            return
        self.depth -= 1
        if self.depth == 0:
            self.holder = None
            self._simulation.pause()

    def locked(self) -> bool:
        return self.holder is not None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class Condition:
    def __init__(self, simulation: Simulation, lock: Lock):
        self._simulation, self._lock = simulation, lock
        self._waiting: list[SimpleNamespace] = []
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> Condition:
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if self._simulation.me is None:
            return True
        mine = SimpleNamespace(told=False)
        self._waiting.append(mine)
        depth, self._lock.depth, self._lock.holder = self._lock.depth, 0, None
        notified = self._simulation.wait(lambda: mine.told, timeout)
        self._waiting = [each for each in self._waiting if each is not mine]
        self._simulation.wait(lambda: self._lock.holder is None)
        self._lock.holder, self._lock.depth = self._simulation.me, depth
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self._simulation.now + timeout
        while not (result := predicate()):
            left = None if end is None else end - self._simulation.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for each in self._waiting[:n]:
            each.told = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    def __init__(self, simulation: Simulation):
        self._simulation, self._is_set = simulation, False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._simulation.pause()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._simulation.wait(lambda: self._is_set, timeout)


class Semaphore:
    def __init__(self, simulation: Simulation, value: int):
        self._simulation, self._value = simulation, value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        self._simulation.pause()
        if self._value == 0 and (not blocking or not self._simulation.wait(lambda: self._value > 0, timeout)):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        self._simulation.pause()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()
