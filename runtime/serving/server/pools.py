"""Runs the server's slow work in pools of threads, one pool for each kind of work, in which clients take turns."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from tensorwright.errors import QueueFullError
from tensorwright.runtime.base.library_errors import as_error
from tensorwright.runtime.guided.compile_queue import PLACES, SLOW_PLACES
from tensorwright.runtime.serving.server.options import ServerOptions

T = TypeVar("T")


@dataclass(frozen=True)
class PoolState:
    """The state of a pool at one moment.

    waiting, running: the numbers of jobs. oldest: the seconds since the oldest running job began; 0 if none runs.
    refused: the number of jobs so far that found the queue full.
    """

    waiting: int
    running: int
    oldest: float
    refused: int


class _Job:
    def __init__(self, work: Callable[[], Any], client: str):
        self.work = work
        self.client = client
        self.future: Future[Any] = Future()
        self.begun = 0.0


class WorkPool:
    """A pool of threads in which clients take turns.

    name: the pool's name in /ready, metrics and errors. threads: the number of jobs that run at once.
    most_waiting: the most jobs that wait, one more raises QueueFullError; None for work that is bounded elsewhere.
    clock: returns the time in seconds.
    """

    def __init__(self, name: str, threads: int, most_waiting: int | None, clock: Callable[[], float] = time.monotonic):
        self.name = name
        self._most_waiting = most_waiting
        self._clock = clock
        self._share = max(1, threads // 2)  # the most threads that work for one client
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"tensorwright-{name}")
        self._lock = threading.Lock()
        self._lines: OrderedDict[str, deque[_Job]] = OrderedDict()  # by client; the next client stands first
        self._running: dict[_Job, None] = {}  # in the order in which they began
        self._waiting = self._refused = 0

    async def run(
        self,
        work: Callable[..., T],
        *arguments: Any,
        client: str = "",
        late: Callable[[T], object] | None = None,
    ) -> T:
        """Returns the result of work(*arguments), run in a thread of the pool. Raises the work's own exceptions, and
        QueueFullError.

        If the waiting task is cancelled, a job that has not begun is dropped. A job that has begun goes on, and `late`,
        if given, takes its result in the pool's thread.
        client: the client on whose behalf the job runs; clients take turns.
        """
        job = _Job(partial(work, *arguments), client)
        self._admit(job)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            self._drop(job)
            if late is not None:
                job.future.add_done_callback(partial(_hand_over, late))
            raise

    def state(self) -> PoolState:
        with self._lock:
            first = next(iter(self._running), None)
            oldest = 0.0 if first is None else self._clock() - first.begun
            return PoolState(self._waiting, len(self._running), oldest, self._refused)

    def close(self) -> None:
        """Drops the jobs that have not begun. It does not wait for those that run."""
        with self._lock:
            left = [job for line in self._lines.values() for job in line]
            self._lines.clear()
            self._waiting = 0
        for job in left:
            job.future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _admit(self, job: _Job) -> None:
        """Queues a job. If the queue is full, the newest job of the client with most waiting jobs fails with
        QueueFullError. If that is the new job, this raises the error."""
        displaced: _Job | None = None
        with self._lock:
            if self._most_waiting is not None and self._waiting >= self._most_waiting:
                self._refused += 1
                displaced = self._make_room(job.client)
            self._lines.setdefault(job.client, deque()).append(job)
            self._waiting += 1
        self._threads.submit(self._run_next)
        if displaced is not None and displaced.future.set_running_or_notify_cancel():
            displaced.future.set_exception(self._full())

    def _make_room(self, client: str) -> _Job:
        longest = max(self._lines, key=lambda name: len(self._lines[name]))
        mine = len(self._lines.get(client, ()))
        if len(self._lines[longest]) <= mine + 1:
            raise self._full()
        self._waiting -= 1
        return self._lines[longest].pop()

    def _full(self) -> QueueFullError:
        return QueueFullError(f"the queue for {self.name} is full with {self._most_waiting} requests: try again later")

    def _drop(self, job: _Job) -> None:
        with self._lock:
            line = self._lines.get(job.client)
            if line is None or job not in line:
                return
            line.remove(job)
            self._waiting -= 1
            if not line:
                del self._lines[job.client]
        job.future.cancel()

    def _run_next(self) -> None:
        """Runs jobs until none may run. One call is submitted per admitted job. A client whose share of the threads is
        busy has its next job run by the thread that ends one of its jobs."""
        while (job := self._take()) is not None:
            try:
                _finish(job)
            finally:
                with self._lock:
                    del self._running[job]

    def _take(self) -> _Job | None:
        """Takes the first job of the client with the fewest running jobs; among equals, of the client whose turn it is.
        Returns None if no job waits, or if every waiting client has its share of the threads."""
        with self._lock:
            busy = [job.client for job in self._running]
            while self._lines:
                client = min(self._lines, key=busy.count)
                if busy.count(client) >= self._share:
                    return None
                line = self._lines[client]
                job = line.popleft()
                self._waiting -= 1
                if line:
                    self._lines.move_to_end(client)
                else:
                    del self._lines[client]
                if job.future.set_running_or_notify_cancel():
                    job.begun = self._clock()
                    self._running[job] = None
                    return job
            return None


def _finish(job: _Job) -> None:
    try:
        result = job.work()
    except BaseException as error:  # A library's panic is no Exception, and would end the event loop's task.
        job.future.set_exception(as_error(error))
    else:
        job.future.set_result(result)


def _hand_over(late: Callable[[T], object], future: Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        late(future.result())


MAX_TEXT_THREADS = 4


class ServerPools:
    """The server's pools.

    grammar: starts requests with a new grammar or schema, from their text on.
    text: parses large bodies, renders chat templates, tokenizes and detokenizes.
    answers: writes answers in one piece, of requests that have run.
    adapters: loads adapters, one at a time.
    events: reads events of prefix caches, of which a reader may wait for a step to end.
    other: reads files and metrics.

    The work of one job is bounded in every pool. Each pool but `answers` refuses jobs beyond `max_waiting_jobs` of the
    options. An answer is never refused, for the engine's bounds hold for its request.
    """

    def __init__(self, options: ServerOptions):
        self._limit = options.max_job_seconds
        bound = options.max_waiting_jobs
        self.grammar = WorkPool("grammars", 2 * (PLACES + SLOW_PLACES), bound)  # Some threads wait for others.
        self.text = WorkPool("text", max(2, min(MAX_TEXT_THREADS, os.cpu_count() or 1)), bound)
        self.answers = WorkPool("answers", 2, None)
        self.adapters = WorkPool("adapters", 1, bound)
        self.events = WorkPool("events", 2, bound)
        self.other = WorkPool("files", 2, bound)

    def __iter__(self) -> Iterator[WorkPool]:
        return iter((self.grammar, self.text, self.answers, self.adapters, self.events, self.other))

    def stuck(self) -> list[str]:
        """Returns the names of the pools whose oldest running job is older than `max_job_seconds` of the options."""
        return [pool.name for pool in self if pool.state().oldest > self._limit]

    def close(self) -> None:
        for pool in self:
            pool.close()
