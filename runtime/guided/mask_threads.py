"""The threads that compute token masks: one for quick ones, two for slow ones, and one that ends what takes too long.

A matcher is slow by what its own masks took, so the grammar of one request does not hold up the masks of another.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.runtime.guided.mask_budget import PER_MASK_S
from tensorwright.runtime.guided.matcher import GrammarMatcher

SLOW_THREADS = 2
WATCH_S = 0.005
"""Between two looks at what runs."""

Told = Callable[[NDArray[np.uint32] | None, BaseException | None], None]


class MaskJob:
    """tokens: the newest of a completion. tell: of the mask of the next, None at the grammar's end, or of an error; in
    the thread that computed it, and it must not raise."""

    def __init__(self, matcher: GrammarMatcher, tokens: Sequence[int], tell: Told):
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
            self._start()
        for job in jobs:
            if job.matcher.budget.slow:
                self._slow.put(([job], None))
        quick = [job for job in jobs if not job.matcher.budget.slow]
        if quick:
            done = threading.Event()
            self._quick.put((quick, done))
            done.wait(patience_s)

    def close(self) -> None:
        """Ends the threads, after what was asked for."""
        if self._threads:
            self._quick.put(None)
            for _ in range(SLOW_THREADS):
                self._slow.put(None)
            for thread in self._threads:
                thread.join()
            self._watch.close()
            self._threads.clear()

    def _start(self) -> None:
        names = [("masks", self._quick), *((f"slow-masks-{at}", self._slow) for at in range(SLOW_THREADS))]
        self._threads = [
            threading.Thread(target=self._work, args=(tasks,), name=f"tensorwright-{name}", daemon=True)
            for name, tasks in names
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, tasks: queue.SimpleQueue[Any]) -> None:
        while (task := tasks.get()) is not None:
            jobs, done = task
            for job in jobs:
                job.tell(*self._computed(job))
            if done is not None:
                done.set()

    def _computed(self, job: MaskJob) -> tuple[NDArray[np.uint32] | None, BaseException | None]:
        mask, error = None, None
        begun = time.thread_time()
        self._watch.begin(job.matcher, begun)
        try:
            mask = job.matcher.advance(job.tokens)
        except BaseException as found:  # whatever one request's grammar does must not end the others
            error = found
        self._watch.end()
        if not job.matcher.budget.pay(time.thread_time() - begun):
            return None, job.matcher.error(f"its masks take longer than {PER_MASK_S * 1e3:g} ms each")
        return mask, error


class Watch:
    """Cancels masks that take more than their budget. Its thread runs while there are masks."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[GrammarMatcher, float]] = {}  # by thread
        self._news = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self, matcher: GrammarMatcher, spent: float) -> None:
        """spent: of the thread that calls, seconds of a processor so far."""
        self._running[threading.get_ident()] = (matcher, spent)
        if not self._news.is_set():
            self._news.set()
            self._begin_thread()

    def end(self) -> None:
        del self._running[threading.get_ident()]

    def close(self) -> None:
        self._closed = True
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    def _begin_thread(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="tensorwright-mask-watch", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        while not self._closed:
            self._news.wait()
            time.sleep(WATCH_S)
            running = dict(self._running)
            if not running:
                self._news.clear()  # who begins later sets it again
            for thread, (matcher, begun) in running.items():
                clock = time.pthread_getcpuclockid(thread)
                if time.clock_gettime(clock) - begun > matcher.budget.left:
                    matcher.cancel()
