"""One thread at a time, chosen by a seed, on a clock of its own.

Every actor is a real thread, but only the one that holds the baton runs; all others wait. The baton passes on where an
actor pauses or waits, and to whom is drawn from the seed, so a run can be repeated. Time stands still while anybody can
run, and jumps to the next deadline when nobody can.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

COLLECTIONS = 40  # of the garbage collector at lines, at most: they take long
STUCK = 120  # real seconds after which the program is ended with the stacks of all threads: some real lock is held


class Deadlock(AssertionError):
    """Everybody waits, and for nothing that time brings."""


class Over(BaseException):
    """Raised in actors that are left when the simulation closes."""


class Actor:
    """A thread of the simulation. ready: what it waits for, None while it can run; deadline: when it stops waiting."""

    def __init__(self, name: str, number: int):
        self.name = name
        self.number = number
        self.thread: threading.Thread | None = None
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.ended = False
        self.priority = 0.0
        self.baton = threading.Semaphore(0)


class Simulation:
    """The thread that makes it is its first actor, and calls `close` in the end.

    Its random numbers decide everything. reorder: how likely the baton passes on at a pause. by_priority: it goes to
    who has the highest, which is drawn anew when one passes it on, so that some are left behind for long; else to any.
    at_lines: how likely at
    each line of the traced files, which finds what is not atomic; collects: how likely the garbage collector comes
    there. traced: whether a file is among them.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.by_priority = False
        self.reorder, self.at_lines, self.collects = 0.5, 0.0, 0.0
        self.traced: Callable[[str], bool] = lambda name: False
        self.now = 1000.0  # seconds
        self.switches = 0
        self.history = 0  # of who had the baton when: equal in equal runs
        self.errors: list[tuple[str, BaseException]] = []  # what ended an actor
        self._files: dict[str, bool] = {}
        self._main = self._current = Actor("main", 0)
        self._main.thread = threading.current_thread()
        self._of_thread = {threading.get_ident(): self._main}
        self._actors = [self._main]
        self._failed: BaseException | None = None
        self._made, self._collections = 0, COLLECTIONS
        self.open = True
        faulthandler.dump_traceback_later(STUCK, exit=True)

    @property
    def me(self) -> Actor | None:
        """The calling thread's actor. None: it has none, and is not simulated."""
        actor = self._of_thread.get(threading.get_ident())
        if actor is not None and not self.open:
            raise Over
        return actor

    @property
    def alive(self) -> list[str]:
        """Names of the actors that have not ended, but the first."""
        return [actor.name for actor in self._actors if not actor.ended and actor is not self._main]

    def spawn(self, name: str, work: Callable[[], Any]) -> Actor:
        """A new actor, which runs when it is drawn."""
        self._made += 1
        actor = Actor(name, self._made)
        actor.priority = self.random.random()

        def run() -> None:
            nonlocal work
            actor.baton.acquire()
            self._of_thread[threading.get_ident()] = actor
            try:
                if not self.open:
                    raise Over
                self.trace()
                work()
                del work  # what it holds goes now, not when the thread does
            except Over:
                return
            except BaseException as error:
                self.errors.append((name, error))
            finally:
                sys.settrace(None)
                # Another thread may get this one's number as soon as it has ended, and is no actor.
                del self._of_thread[threading.get_ident()]
            actor.ended = True
            self._actors.remove(actor)
            if self.open:
                self._pass_on(actor)

        actor.thread = threading.Thread(target=run, name=name, daemon=True)
        self._actors.append(actor)
        actor.thread.start()
        return actor

    def pause(self) -> None:
        """Somebody else may run."""
        me = self.me
        if me is not None and self.random.random() < self.reorder:
            self._give_way(me)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Until it is ready, or so many seconds later by its clock: then False. ready: quick, and without effect."""
        me = self.me
        if me is None:
            return ready()
        me.ready, me.deadline = ready, None if timeout is None else self.now + max(0.0, timeout)
        self._pass_on(me)
        return ready()

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def close(self) -> None:
        """Ends the simulation, and every actor that is left by Over."""
        sys.settrace(None)
        faulthandler.cancel_dump_traceback_later()
        self._of_thread.pop(threading.get_ident())
        self.open = False
        for actor in self._actors:
            actor.baton.release()
        for actor in self._actors:
            if actor is not self._main and actor.thread is not None:
                actor.thread.join(5)

    def _give_way(self, me: Actor) -> None:
        me.priority = self.random.random()
        self._pass_on(me)

    def _pass_on(self, me: Actor) -> None:
        """From the actor that runs to one that can, which may be the same."""
        try:
            chosen = self._choose()
        except Deadlock as error:
            self._failed, chosen = error, self._main  # it is told, and nobody waits any more
        self.switches += 1
        self.history = hash((self.history, chosen.number, self.now))
        chosen.ready = chosen.deadline = None
        if chosen is not me:
            self._current = chosen
            chosen.baton.release()
            if me.ended:
                return
            me.baton.acquire()
            if not self.open:
                raise Over
        if self._failed is not None and me is self._main:
            raise self._failed

    def _choose(self) -> Actor:
        while True:
            able = [
                actor
                for actor in self._actors
                if actor.ready is None or actor.ready() or (actor.deadline is not None and actor.deadline <= self.now)
            ]
            if able and self.by_priority:
                return max(able, key=lambda actor: actor.priority)
            if able:
                return self.random.choice(able)
            deadlines = [actor.deadline for actor in self._actors if actor.deadline is not None]
            if not deadlines:
                raise Deadlock(self._stacks())
            self.now = min(deadlines)

    def _stacks(self) -> str:
        frames = sys._current_frames()
        told = ["nobody can run:"]
        for actor in self._actors:
            assert actor.thread is not None
            frame = frames.get(actor.thread.ident or 0)
            told += [f"-- {actor.name}", *(traceback.format_stack(frame)[-6:] if frame else [])]
        return "\n".join(told)

    def trace(self) -> None:
        """From now on the lines of the calling thread count, too."""
        if self.at_lines or self.collects:
            sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        wanted = self._files.get(name)
        if wanted is None:
            wanted = self._files[name] = self.traced(name)
        if not wanted:
            return None
        if event == "line" and self.open:
            drawn = self.random.random()
            if drawn < self.at_lines:
                me = self.me
                if me is not None:
                    self._give_way(me)
            elif drawn > 1 - self.collects and self._collections:
                self._collections -= 1
                gc.collect()
        return self._trace
