"""Computes token masks in threads: one for quick masks, two for slow ones, and one that cancels overlong ones.

A matcher counts as slow if its own recent masks were slow, so the grammar of one request does not delay the masks of
another.
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
"""The seconds between two looks at the masks that are being computed."""

MaskReceiver = Callable[[NDArray[np.uint32] | None, BaseException | None], None]


class MaskJob:
    """One mask to compute.

    tokens: the newest tokens of the completion. tell: gets the mask of the next token (None at the grammar's end) and
    the error, if any; it is called in the thread that computed the mask, and must not raise.
    """

    def __init__(self, matcher: GrammarMatcher, tokens: Sequence[int], tell: MaskReceiver):
        self.matcher = matcher
        self.tokens = tokens
        self.tell = tell


class MaskThreads:
    """The threads of one engine. They start with the first masks. Only one thread may call this object."""

    def __init__(self) -> None:
        self._quick: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._slow: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._watch = Watch()
        self._threads: list[threading.Thread] = []

    def compute(self, jobs: Sequence[MaskJob], patience_s: float) -> None:
        """Begins to compute all jobs. Returns when the quick jobs are computed, or after `patience_s` seconds."""
        if not self._threads:
            try:
                self._start()
            except RuntimeError as error:  # the system has no more threads, so only these guided requests fail
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
        """Ends the threads soon. It cancels the masks that are being computed, and drops the jobs that wait."""
        self._watch.close()
        self._quick.put(None)
        for _ in range(SLOW_THREADS):
            self._slow.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start(self) -> None:
        """Starts all threads, or none if one cannot start."""
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
    """Runs the jobs of a queue until the queue gives None. It is the main function of a thread."""
    while (task := tasks.get()) is not None:
        jobs, done = task
        for job in jobs:
            if not watch.closed:
                _follow(job, watch)
        # What is foreseen hurries less than what another completion waits for.
        while not watch.closed and tasks.empty() and (jobs := [job for job in jobs if _foresee(job, watch)]):
            pass
        if done is not None:
            done.set()


def _follow(job: MaskJob, watch: Watch) -> None:
    """Moves over the job's tokens, and tells the mask behind them unless it was told already."""
    with job.matcher.lock:
        if not job.matcher.take_foreseen(job.tokens):
            _tell(job, *_computed(job, watch, lambda: job.matcher.advance(job.tokens)))


def _foresee(job: MaskJob, watch: Watch) -> bool:
    """Tells one mask before the engine has drawn the token in front of it. Returns False if there is none."""
    with job.matcher.lock:
        if not job.matcher.foresees:
            return False
        mask, error = _computed(job, watch, job.matcher.foresee)
        if mask is None and error is None:
            return False
        _tell(job, mask, error)
        return error is None


def _tell(job: MaskJob, mask: NDArray[np.uint32] | None, error: BaseException | None) -> None:
    try:
        job.tell(mask, error)
    except BaseException:  # the thread must go on, because it computes the masks of other requests too
        logger.exception("a mask could not be told")


def _computed(
    job: MaskJob, watch: Watch, compute: Callable[[], NDArray[np.uint32] | None]
) -> tuple[NDArray[np.uint32] | None, BaseException | None]:
    mask, error = None, None
    begun = time.thread_time()
    watch.begin(job.matcher, begun)
    try:
        mask = compute()
    except BaseException as found:  # a failure of one request's grammar must not end other requests
        error = found
    if watch.end() or not job.matcher.budget.pay(time.thread_time() - begun):
        return None, job.matcher.error(f"its masks take longer than {PER_MASK_S * 1e3:g} ms each")
    return mask, error


@dataclass
class _Running:
    """A mask that is being computed.

    clock: the processor clock of the thread that computes it. begun: that clock's time at the start. late: True after a
    look found that the mask took too much.
    """

    matcher: GrammarMatcher
    clock: int
    begun: float
    late: bool = False
    cancelled: bool = False

    def look(self) -> None:
        """Cancels the mask if it takes too much for the second time. The first time may be a leap of the clock
        (mask_budget.py), and then a quick mask ends before the second look."""
        if time.clock_gettime(self.clock) - self.begun <= self.matcher.budget.left:
            return
        if self.late:
            self.cancelled = True
            self.matcher.cancel()
        self.late = True


class Watch:
    """Cancels masks that take more than their budget."""

    def __init__(self) -> None:
        self._running: dict[int, _Running] = {}  # thread identifier -> the mask that the thread computes
        self.closed = False
        self._changed = threading.Condition()
        """Its lock is held while `run` looks at the masks, so each mask is still being computed then."""

    def begin(self, matcher: GrammarMatcher, spent: float) -> None:
        """Registers the mask that the calling thread begins to compute. spent: the thread's seconds of a processor."""
        thread = threading.get_ident()
        clock = time.pthread_getcpuclockid(thread)  # asking for the clock of an ended thread is not allowed
        with self._changed:
            self._running[thread] = _Running(matcher, clock, spent)
            self._changed.notify()

    def end(self) -> bool:
        """Unregisters the calling thread's mask. Returns whether the mask was cancelled because it took too much."""
        with self._changed:
            return self._running.pop(threading.get_ident()).cancelled

    def close(self) -> None:
        """Makes `run` cancel every mask until none is being computed, and then return."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def run(self) -> None:
        """Looks at the masks until close(). It is the main function of a thread, which sleeps while no mask is being
        computed."""
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
