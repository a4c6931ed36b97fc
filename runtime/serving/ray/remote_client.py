"""Sends requests to an engine's replicas, and applies the events that come back to the requests' handles.

It stands where EngineClient stands for an engine in this process. A request whose replica is lost is sent again: as it
was if nothing of it has come, or, with `resume`, from the tokens that have come (resume.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from tensorwright.errors import (
    EngineStoppedError,
    QueueFullError,
    ReplicaLostError,
    RequestAbortedError,
    TemporarilyUnavailableError,
)
from tensorwright.runtime.base.engine_event import EngineEvent
from tensorwright.runtime.base.library_errors import as_error
from tensorwright.runtime.requests.engine_client import Observer
from tensorwright.runtime.requests.outputs import CompletionOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.serving.ray.fleet_stats import FleetStats
from tensorwright.runtime.serving.ray.resume import continuation, why_not
from tensorwright.runtime.serving.ray.waiting_line import WaitingLine
from tensorwright.runtime.serving.ray.wire import RemoteRequest

logger = logging.getLogger(__name__)
MAX_ATTEMPTS = 8
"""How often one request is sent before it fails with ReplicaLostError."""
FIRST_PAUSE, MAX_PAUSE = 0.05, 2.0
"""The seconds before the second attempt and before later ones, doubled each time."""
WATCH_SECONDS = 0.25
MAX_WITHOUT_REPLICAS = 60.0
"""When there has been no replica for so many seconds, requests are refused, and those that wait for one fail."""

Report = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Limits:
    """What one replica may have, and what may wait. places: the completions that a replica runs at once. requests: the
    requests that a replica may have, running and waiting. queue: the requests that may wait, here and in replicas."""

    places: int
    requests: int
    queue: int


@dataclass
class Job:
    """One request on its way. request: as it was sent first. max_tokens: the most tokens of the whole request. begun:
    whether anything of it has come. engine: where it came from, as in ReplicaFacts."""

    handle: RequestHandle
    request: RemoteRequest
    max_tokens: int
    submitted: float = field(default_factory=time.monotonic)
    begun: bool = False
    engine: str | None = None
    task: asyncio.Task[None] | None = None


@dataclass
class Outcomes:
    """What became of requests whose replica was lost. restarted: sent again as they were. resumed: went on from their
    tokens. lost: ended with ReplicaLostError."""

    restarted: int = 0
    resumed: int = 0
    lost: int = 0


class RemoteClient:
    """The client of one engine's replicas. It is thread-safe.

    handle: a DeploymentHandle of EngineReplica. report: returns what each replica that there is reported last, by its
    name (live_routers.py). limits: of one replica, and of what waits. resume: whether a request goes on elsewhere when
    its replica is lost.
    """

    def __init__(self, handle: Any, report: Callable[[], Report], limits: Limits, resume: bool):
        self._generate = handle.options(method_name="generate", stream=True)
        self._report = report
        self._limits = limits
        self._resume = resume
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._observers: tuple[Observer, ...] = ()
        self._stats = FleetStats()
        self._replicas = 1
        self._present = time.monotonic()  # the last time that there was a replica
        self._closing = False
        self._sender = uuid.uuid4().hex
        self._line = WaitingLine(limits.requests)
        self.outcomes = Outcomes()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="tensorwright-replicas", daemon=True)
        self._thread.start()

    def submit(self, make_state: Callable[[int], RequestState], request: RemoteRequest) -> RequestHandle:
        """Sends a request. Raises QueueFullError, TemporarilyUnavailableError or EngineStoppedError.

        make_state: builds the request's state from its id. request: its params have max_tokens and a seed.
        """
        assert request.params.max_tokens is not None
        state = make_state(next(self._ids))
        job = Job(RequestHandle(state, self.abort), request, request.params.max_tokens)
        with self._lock:
            self._check_open()
            room = self._limits.places * max(1, self._replicas) + self._limits.queue
            if len(self._jobs) >= room:
                raise QueueFullError(
                    f"the replicas have {room} requests, running and waiting, and may have no more: try again later, "
                    "or raise max_queue_size"
                )
            self._jobs[state.request_id] = job
            self._loop.call_soon_threadsafe(self._start, job)  # before close() can stop the loop
        return job.handle

    def abort(self, request_id: int, completion: int = -1) -> bool:
        """Aborts a request. Returns False if it has ended. completion: a single completion of several is left alone,
        because its replica ends it by itself. It takes no lock, for the garbage collector may call it."""
        job = self._jobs.get(request_id)
        if job is None:
            return False
        if completion < 0:
            try:
                self._loop.call_soon_threadsafe(self._end_aborted, job)
            except RuntimeError:
                return False  # The loop was closed just now, and has ended all requests.
        return True

    def add_observer(self, observer: Observer) -> None:
        with self._lock:
            self._observers = (*self._observers, observer)

    @property
    def running(self) -> bool:
        """Whether requests are taken and a replica is there for them."""
        return not self._closing and self._thread.is_alive() and self._replicas > 0

    @property
    def stalled_seconds(self) -> float:
        return self._stats.least_stalled

    def stats(self) -> dict[str, Any]:
        """Returns the sum of the replicas' statistics, a second or two old, and the fleet's own. The requests that wait
        here count as waiting."""
        with self._lock:
            if self._closing:
                raise EngineStoppedError("the replicas were shut down")
            total = self._stats.total()
            fleet = {"replicas": self._replicas, **vars(self.outcomes)}
        return {**total, "waiting": total["waiting"] + len(self._line), "fleet": fleet}

    def close(self) -> None:
        """Ends all requests with RequestAbortedError. A second call does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._generate.shutdown()  # Otherwise its router would go on to report to the cluster.

    def _check_open(self) -> None:
        if self._closing:
            raise EngineStoppedError("the replicas were shut down")
        if self._abandoned():
            raise TemporarilyUnavailableError(f"there has been no replica for {MAX_WITHOUT_REPLICAS:g} seconds")

    def _abandoned(self) -> bool:
        return self._replicas == 0 and time.monotonic() - self._present > MAX_WITHOUT_REPLICAS

    # All that follows runs in the thread of the client's own event loop.

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        watching = self._loop.create_task(self._watch())
        try:
            self._loop.run_forever()
        finally:
            for job in list(self._jobs.values()):
                self._fail(job, RequestAbortedError("the replicas were shut down before the request finished"))
            rest = [task for task in asyncio.all_tasks(self._loop) if task.cancel()]
            self._loop.run_until_complete(asyncio.gather(watching, *rest, return_exceptions=True))
            self._loop.close()

    def _start(self, job: Job) -> None:
        job.task = self._loop.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        """Sends the request until it has ended."""
        pause = FIRST_PAUSE
        try:
            for attempt in range(MAX_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_PAUSE)
                await self._line.enter(job.request.params.priority, job.handle.request_id)
                try:
                    lost = await self._attempt(job)
                finally:
                    self._line.leave()
                if lost is None:
                    return
                logger.warning("request %d lost its replica: %s", job.handle.request_id, _first_line(lost))
                self._check_resumable(job)
            raise ReplicaLostError(f"{MAX_ATTEMPTS} replicas were lost, one after the other, that had the request")
        except asyncio.CancelledError:
            raise
        except ReplicaLostError as error:
            self.outcomes.lost += 1
            self._fail(job, error)
        except Exception as error:
            logger.exception("request %d failed", job.handle.request_id)
            self._fail(job, as_error(error))

    async def _attempt(self, job: Job) -> Exception | None:
        """Sends the request once. Returns None if it has ended, or the error with which its replica was lost."""
        request = self._next_request(job)
        if request is None:  # Only the last event was lost.
            self._apply(job, EngineEvent(0, 0, finish="length"))
            return None
        response = self._generate.remote(replace(request, sender=self._sender, queued=len(self._line)))
        whole = False  # whether the replica has ended the answer by itself
        try:
            async for news in response:
                job.engine = news.engine
                for event in news.events:
                    self._apply(job, event)
                if job.handle.done and not news.events[-1].finish:
                    return None  # A stop string ended it here, and the replica does not know.
            whole = True
            return None if job.handle.done else EngineStoppedError("its replica ended the answer too early")
        except RayTaskError as error:
            if not isinstance(error, (EngineStoppedError, RequestAbortedError)):
                raise
            return None if job.handle.done else error
        except (RayError, RayServeException) as error:
            return None if job.handle.done else error
        finally:
            if not whole:
                response.cancel()

    def _next_request(self, job: Job) -> RemoteRequest | None:
        """Returns the request for the next attempt: the first one, or the rest of it; None if nothing is left."""
        params = job.request.params
        if params.timeout is not None:
            left = params.timeout - (time.monotonic() - job.submitted)
            params = replace(params, timeout=max(left, 0.001))
        if not job.begun:
            return replace(job.request, params=params)
        done = _tokens_of(job)
        if len(done.token_ids) >= job.max_tokens:
            return None
        return replace(
            job.request,
            tokens=[*job.request.tokens, *done.token_ids],
            params=continuation(params, job.max_tokens, done),
            engine=job.engine,
        )

    def _check_resumable(self, job: Job) -> None:
        """Raises ReplicaLostError if the request cannot be sent again."""
        if not job.begun:
            self.outcomes.restarted += 1
            return
        if not self._resume:
            raise ReplicaLostError("the replica that computed the request is gone: send it again")
        if (reason := why_not(job.request.params)) is not None:
            raise ReplicaLostError(
                f"the replica that computed the request is gone, and the request cannot go on elsewhere, for {reason}: "
                "send it again"
            )
        self.outcomes.resumed += 1

    def _apply(self, job: Job, event: EngineEvent) -> None:
        if event.error_type == ReplicaLostError.__name__:
            raise ReplicaLostError(f"the request could not go on elsewhere: {event.error}")
        if event.tokens and not job.begun:
            event = _as_seen_here(event, time.monotonic() - job.submitted)
        job.begun = job.begun or bool(event.tokens or event.prompt_logprobs)
        if job.handle._on_event(event):
            self._forget(job)

    def _end_aborted(self, job: Job) -> None:
        """Ends an aborted request with its output so far, and lets its replica know."""
        if job.task is not None:
            job.task.cancel()
        for index in range(job.request.params.n):
            if not job.handle.done:
                job.handle._on_event(EngineEvent(0, index, finish="abort"))
        self._forget(job)

    def _fail(self, job: Job, error: BaseException) -> None:
        job.handle._fail(error)
        self._forget(job)

    def _forget(self, job: Job) -> None:
        if self._jobs.pop(job.handle.request_id, None) is None:
            return
        for observer in self._observers:
            try:
                observer(job.handle.so_far(), job.handle.error)
            except Exception:  # A failing observer must not end requests.
                logger.exception("an observer of requests failed")

    async def _watch(self) -> None:
        """Follows which replicas there are and what they report, and fails the requests that wait when there has been
        no replica for long."""
        while True:
            try:
                self._look()
            except Exception:  # The next look may see more; a request that waits must not wait for ever.
                logger.exception("the state of the replicas could not be read")
            await asyncio.sleep(WATCH_SECONDS)

    def _look(self) -> None:
        reported = self._report()
        with self._lock:
            self._replicas = len(reported)
            self._stats.update({name: each["stats"] for name, each in reported.items() if "stats" in each})
        if reported:
            self._present = time.monotonic()
        self._line.set_room(self._limits.requests * max(1, len(reported)))
        if self._abandoned():
            error = TemporarilyUnavailableError(f"there has been no replica for {MAX_WITHOUT_REPLICAS:g} seconds")
            for job in list(self._jobs.values()):
                if job.task is not None:
                    job.task.cancel()
                self._fail(job, error)


def _tokens_of(job: Job) -> CompletionOutput:
    """Returns the output so far of a request of one completion."""
    return job.handle.so_far().outputs[0]


def _as_seen_here(event: EngineEvent, seconds: float) -> EngineEvent:
    """Returns the first event of a request with the times that passed here, on the way to the replica included.

    seconds: from the request's arrival here to its first token.
    """
    computed = max(0.0, event.first_token_s - event.queue_s)
    return replace(event, first_token_s=seconds, queue_s=max(0.0, seconds - computed))


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
