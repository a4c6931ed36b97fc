"""The threads that compute token masks: one for quick ones, two for slow ones, and one that ends what takes too long.

A matcher is slow by what its own masks took, so the grammar of one request does not hold up the masks of another.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.runtime.guided.mask_budget import PER_MASK_S
from tensorwright.runtime.guided.matcher import GrammarMatcher

logger = logging.getLogger(__name__)
SLOW_THREADS = 2
WATCH_S = 0.005
"""Between two looks at what runs."""

MaskReceiver = Callable[[NDArray[np.uint32] | None, BaseException | None], None]


class MaskJob:
    """tokens: the newest of a completion. tell: of the mask of the next, None at the grammar's end, or of an error; in
    the thread that computed it, and it must not raise."""

    def __init__(self, matcher: GrammarMatcher, tokens: Sequence[int], tell: MaskReceiver):
        self.matcher = matcher
        self.tokens = tokens
        self.tell = tell


class MaskThreads:
    """They start with the first masks. One thread calls."""

    def __init__(self) -> None:
        self._quick: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._slow: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watch = Watch()
        self._threads: list[threading.Thread] = []

    def compute(self, jobs: Sequence[MaskJob], patience_s: float) -> None:
        """Returns when the quick ones are computed, or after `patience_s`: all are computed anyway."""
        if not self._threads:
            try:
                self._start()
            except RuntimeError as error:  # the system has no more threads: only these requests need them
                for job in jobs:
                    _tell(job, None, error)
                return
        for job in jobs:
            if job.matcher.budget.slow:
                self._slow.put(([job], None))
        quick = [job for job in jobs if not job.matcher.budget.slow]
        if quick:
            done = threading.Event()
            self._quick.put((quick, done))
            done.wait(patience_s)

    def close(self) -> None:
        """Ends the threads, soon: what is computed is cancelled, and what waits is told to nobody."""
        self._watch.close()
        self._quick.put(None)
        for _ in range(SLOW_THREADS):
            self._slow.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        """All or none."""
        self._quick, self._slow, self._watch = queue.SimpleQueue(), queue.SimpleQueue(), Watch()
        works: list[tuple[str, Callable[..., None], tuple[Any, ...]]] = [
            ("mask-watch", self._watch.run, ()),
            ("masks", _work, (self._quick, self._watch)),
            *((f"slow-masks-{at}", _work, (self._slow, self._watch)) for at in range(SLOW_THREADS)),
        ]
        try:
            for name, work, given in works:
                thread = threading.Thread(target=work, args=given, name=f"tensorwright-{name}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise


def _work(tasks: queue.SimpleQueue[Any], watch: Watch) -> None:
    """What a thread does, until None comes."""
    while (task := tasks.get()) is not None:
        jobs, done = task
        for job in jobs:
            if not watch.closed:
                _tell(job, *_computed(job, watch))
        if done is not None:
            done.set()


def _tell(job: MaskJob, mask: NDArray[np.uint32] | None, error: BaseException | None) -> None:
    try:
        job.tell(mask, error)
    except BaseException:  # the thread must live: the masks of others are computed there
        logger.exception("a mask could not be told")


def _computed(job: MaskJob, watch: Watch) -> tuple[NDArray[np.uint32] | None, BaseException | None]:
    mask, error = None, None
    begun = time.thread_time()
    watch.begin(job.matcher, begun)
    try:
        mask = job.matcher.advance(job.tokens)
    except BaseException as found:  # whatever one request's grammar does must not end the others
        error = found
    if watch.end() or not job.matcher.budget.pay(time.thread_time() - begun):
        return None, job.matcher.error(f"its masks take longer than {PER_MASK_S * 1e3:g} ms each")
    return mask, error


@dataclass
class _Running:
    """clock: of the thread that computes; begun: what it said then. late: once it was seen to take too much."""

    matcher: GrammarMatcher
    clock: int
    begun: float
    late: bool = False
    cancelled: bool = False

    def look(self) -> None:
        """Cancels it the second time that it takes too much: a clock may have leapt (mask_budget.py), and what is
        quick has ended by then."""
        if time.clock_gettime(self.clock) - self.begun <= self.matcher.budget.left:
            return
        if self.late:
            self.cancelled = True
            self.matcher.cancel()
        self.late = True


class Watch:
    """Cancels masks that take more than their budget."""

    def __init__(self) -> None:
        self._running: dict[int, _Running] = {}  # by thread
        self.closed = False
        self._changed = threading.Condition()
        """Held while `run` looks: what it asks and cancels is then still being computed."""

    def begin(self, matcher: GrammarMatcher, spent: float) -> None:
        """spent: of the thread that calls, seconds of a processor so far."""
        thread = threading.get_ident()
        clock = time.pthread_getcpuclockid(thread)  # of a thread that has ended nobody may ask for it
        with self._changed:
            self._running[thread] = _Running(matcher, clock, spent)
            self._changed.notify()

    def end(self) -> bool:
        """Whether it was cancelled for what it took."""
        with self._changed:
            return self._running.pop(threading.get_ident()).cancelled

    def close(self) -> None:
        """From now on it cancels all that is computed, until nothing is."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def run(self) -> None:
        """In a thread of its own. It sleeps while nothing is computed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.closed or self._running)
                if self.closed and not self._running:
                    return
                for each in self._running.values():
                    if self.closed:
                        each.matcher.cancel()
                    else:
                        each.look()
            time.sleep(WATCH_S)
