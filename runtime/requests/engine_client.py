"""Connects callers to the C++ engine: it gives out request ids, and one thread dispatches the engine's events.

It has more than 500 lines because an engine that dies, and the one that takes its place, share the lock and the table
of requests with all that callers do meanwhile.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from tensorwright.errors import (
    EngineRestartedError,
    EngineStoppedError,
    InvalidOptionError,
    QueueFullError,
    RankError,
    RequestAbortedError,
    TemporarilyUnavailableError,
)
from tensorwright.runtime.base.forks import HomeProcess
from tensorwright.runtime.base.library_errors import as_error
from tensorwright.runtime.engine import native
from tensorwright.runtime.guided.mask_feeder import MaskFeeder
from tensorwright.runtime.guided.matcher import GrammarMatcher
from tensorwright.runtime.requests.kept_requests import KeptRequests
from tensorwright.runtime.requests.long_events import LongEvents
from tensorwright.runtime.requests.no_engine import NoEngine
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.requests.stall_report import MAX_REQUESTS, MAX_SPANS
from tensorwright.runtime.requests.watchdog import Watchdog, WatchdogOptions

logger = logging.getLogger(__name__)
POLL = 0.5  # the most seconds of one wait
PIN_TIMEOUT = 60.0  # the seconds in which the loop must come to pin a prefix
# The cause of an engine that stopped because of shutdown(), in the words of runtime/core/engine/engine.cc.
SHUT_DOWN = "was shut down"
MOST_STARTS = 3
"""How often the ranks of an engine may be lost in a row, without one request that is answered in between."""
COLLECTED_WAIT = 1.0  # the most seconds for which a thread that drops an LLM waits for the LLM's end

Observer = Callable[[RequestOutput, BaseException | None], None]


class EngineClient:
    """The client of one engine. It is thread-safe.

    engine: a `_runtime.Engine`, with submit, abort, wait_events, stats, shutdown and stopped. on_stopped: is called
    once the engine has stopped because the client was closed. start_again: makes another engine in place of one that
    died; None if none can take its place. keep_waiting: whether requests that have no token go on with the other
    engine; else all end with RankError. watchdog: None watches nothing.

    A fork of the process has neither the engine's threads nor the client's. There every method raises
    ForkedEngineError, except that `running` is False and `close` does nothing.
    """

    def __init__(
        self,
        engine: Any,
        on_stopped: Callable[[], None] | None = None,
        start_again: Callable[[], Any] | None = None,
        *,
        keep_waiting: bool = False,
        watchdog: WatchdogOptions | None = None,
    ):
        self._home = HomeProcess()
        self._start_again = start_again
        self._starts = 0  # how often engines were lost since a request was answered
        self._starting = False  # True while another engine takes the place of one that was lost
        self._keep_waiting = keep_waiting and start_again is not None
        self._stalled = ""  # why the engine is told to stop, so that another one takes its place
        self._kept = KeptRequests()
        self._on_stopped = on_stopped
        self._engine = engine
        self._feeder = MaskFeeder(engine)
        self._long = LongEvents()
        self._ids = itertools.count(1)
        self._requests: dict[int, RequestHandle] = {}
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # notified when a request ends
        self._closing = False  # True means that no new requests may come
        self._close_once = threading.Lock()  # the first close() takes this lock and never releases it
        self._last_progress = time.monotonic()
        self._steps = 0  # the engine's number of steps at the last poll without events
        self._cause: BaseException | None = None
        self._observers: tuple[Observer, ...] = ()
        self.on_replaced: Callable[[], None] | None = None  # is called when another engine has taken the place
        self._thread = threading.Thread(target=self._consume, name="tensorwright-events", daemon=True)
        self._thread.start()
        self._watchdog = None if watchdog is None else Watchdog(self, watchdog)
        if self._watchdog is not None:
            self._watchdog.start()
        _open_clients.add(self)

    def submit(
        self,
        make_state: Callable[[int], RequestState],
        sampling: Any,
        wait_for_room: bool = False,
        first_mask: Any = None,
    ) -> RequestHandle:
        """Submits a request to the engine.

        make_state: builds the request's state from its id. sampling: a `_runtime.Sampling`. wait_for_room: True waits
        while the queue is full; False raises QueueFullError then. first_mask: for a guided request, the mask of the
        first token.
        """
        self._home.check()
        while True:
            state = make_state(next(self._ids))
            handle = RequestHandle(state, self.abort)
            with self._lock:
                self._check_open()
                if self._starting:
                    self._wait_for_ranks(wait_for_room)
                    continue
                if not self._requests:
                    self._last_progress = time.monotonic()  # before this request there was no progress to expect
                self._requests[state.request_id] = handle
                if self._keep_waiting:
                    self._kept.note(state.request_id, sampling, first_mask)
            try:
                self._engine.submit(state.request_id, state.prompt_token_ids, sampling, first_mask)
                return handle
            except QueueFullError:
                self._forget(state.request_id)
                if not wait_for_room:
                    raise
                with self._room:
                    self._room.wait(POLL)
            except EngineStoppedError:
                self._forget(state.request_id)
                if self._start_again is None or self._closing or self._cause is not None:
                    raise
                with self._lock:
                    self._wait_for_ranks(wait_for_room)
            except BaseException:
                self._forget(state.request_id)
                raise

    def _wait_for_ranks(self, wait: bool) -> None:
        """Waits a moment for an engine that starts again. The caller holds the lock."""
        if not wait:
            what = "starts again" if self._keep_waiting else "lost a rank, and all ranks start again"
            raise TemporarilyUnavailableError(f"the engine {what}; try again later")
        self._room.wait(POLL)

    def abort(self, request_id: int, completion: int = -1) -> bool:
        """Aborts a request, or one of its completions. Returns False if the request has ended. completion: -1 means
        all."""
        self._home.check()
        return self._engine.abort(request_id, completion)

    def abort_for_caller(self, request_id: int) -> bool:
        """Aborts a request as its handle's `abort` does. Returns False if the request has ended or never existed."""
        self._home.check()
        with self._lock:
            handle = self._requests.get(request_id)
        return handle is not None and handle.abort()

    @property
    def running(self) -> bool:
        """Whether it takes requests: it is not closed, and the engine's loop and the thread of events run."""
        if not self._home.is_here or self._closing or self._cause is not None:
            return False
        return self._thread.is_alive() and not self._engine.stopped

    @property
    def trouble(self) -> str:
        """Why the engine cannot work at the moment, although nobody closed the client; "" while all is well. It takes
        no lock."""
        if not self._home.is_here or self._closing or self._cause is not None:
            return ""
        if self._watchdog is not None and self._watchdog.stalled:
            return f"no step has ended for {self.stalled_seconds:.0f} s"
        if self._starting or (self._engine.stopped and self._is_replaced(self._engine.cause)):
            return "another engine takes the place of one that died"
        return ""

    @property
    def stalled_seconds(self) -> float:
        """The seconds for which there have been requests, but no step has ended and no event has come; 0 without
        requests. It takes no lock."""
        last = self._last_progress  # read this before self._requests, because the first request sets it anew
        return max(0.0, time.monotonic() - last) if self._requests and not self._starting else 0.0

    def check_process(self) -> None:
        """Raises ForkedEngineError in a fork of the process that made this client."""
        self._home.check()

    def check_open(self) -> None:
        """Raises EngineStoppedError for a client that takes no requests any more, and ForkedEngineError in a fork."""
        self._home.check()
        with self._lock:
            self._check_open()

    def add_observer(self, observer: Observer) -> None:
        self._home.check()
        with self._lock:
            self._observers = (*self._observers, observer)

    def stats(self) -> dict[str, Any]:
        self._home.check()
        with self._lock:
            self._check_open()
        return {**self._engine.stats(), "stalled_seconds": self.stalled_seconds}

    def profile(self, enable: bool) -> None:
        self._home.check()
        self._engine.profile(enable)

    def read_profile(self) -> dict[str, Any]:
        self._home.check()
        return native.read_profile(self._engine)

    def prefix_transfers(self) -> Any:
        """Returns the engine's `_runtime.PrefixTransfers`. No other engine of one rank takes the place of this one
        then, for whoever has them would not hear of it."""
        self._home.check()
        if self._keep_waiting:
            self._start_again, self._keep_waiting = None, False
        return self._engine.prefix_transfers()

    def pin(self, number: int, tokens: Sequence[int], salt: str) -> int:
        """Pins the full blocks of tokens, and returns how many of them the engine has; fewer than all mean that nothing
        is pinned. Another engine that takes the place of this one holds no pins: `on_replaced` is called then."""
        return int(self._prefixes().pin(number, np.asarray(tokens, np.int32), salt, PIN_TIMEOUT))

    def unpin(self, number: int) -> None:
        self._prefixes().unpin(number, PIN_TIMEOUT)

    def _prefixes(self) -> Any:
        self._home.check()
        with self._lock:
            self._check_open()
            return self._engine.prefix_transfers()

    def cache_feed(self) -> Any:
        """Returns the engine's `_runtime.CacheFeed`. Another engine that takes the place of this one has another."""
        self._home.check()
        with self._lock:
            self._check_open()
            if self._starting:
                raise TemporarilyUnavailableError("the engine starts again; try again later")
            return self._engine.cache_feed()

    def close(self, drain: bool = False, timeout: float = 30.0) -> None:
        """Ends all requests and stops the engine. drain: True lets requests finish first, for at most `timeout`
        seconds."""
        if not self._home.is_here or not self._close_once.acquire(blocking=False):
            return
        self._closing = True
        if self._engine.called_here:  # the engine's own thread cannot wait for its own end
            threading.Thread(target=self._stop, args=(drain, timeout), name="tensorwright-close").start()
        else:
            self._stop(drain, timeout)

    def close_dropped(self) -> None:
        """Closes the client when the garbage collector drops it.

        The collector runs in any thread, which may hold a lock that `close` waits for, so another thread closes. This
        thread waits for it for at most COLLECTED_WAIT seconds, so that a program that drops an LLM to make room for
        another one finds the memory free.
        """
        if not self._home.is_here:
            return
        closer = threading.Thread(target=self.close, name="tensorwright-close")
        try:
            closer.start()
        except RuntimeError:  # the system has no more threads, or the interpreter exits
            self.close()
            return
        if threading.current_thread() is not self._thread and not self._engine.called_here:
            closer.join(COLLECTED_WAIT)

    def _stop(self, drain: bool, timeout: float) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        try:
            self._engine.shutdown(drain, timeout)
        finally:
            if threading.current_thread() is not self._thread:
                self._thread.join()
        self._log_notices()  # what an engine tells at its end
        if self._on_stopped is not None:
            self._on_stopped()

    def describe(self) -> dict[str, Any]:
        """Returns what the watchdog's report says of the engine: counters, the requests that have not ended, and the
        last spans of the timeline if one is kept."""
        handles = list(self._requests.values())
        try:
            spans: Any = self._engine.timeline()[0][-MAX_SPANS:].tolist()
        except (EngineStoppedError, InvalidOptionError):  # no timeline is kept
            spans = None
        return {
            "engine": self._engine.stats(),
            "stalled_seconds": self.stalled_seconds,
            "requests": len(handles),
            "of_them": [handle._describe() for handle in handles[:MAX_REQUESTS]],
            "timeline": spans,
        }

    def replace_stalled(self, why: str) -> None:
        """Ends the requests that have begun, and tells the engine to stop after the step under way, so that another one
        takes its place. It does nothing if none can."""
        if not self._keep_waiting or self._start_again is None or self._closing:
            logger.error("no other engine can take the place of this one; its requests wait for the step to end")
            return
        self._stalled = why
        error = EngineRestartedError(f"the request ended with the engine: {why}; send it again")
        with self._lock:
            begun = [handle for handle in self._requests.values() if not self._kept.may_keep(handle)]
        for handle in begun:
            self._end(handle, error)
        self._engine.begin_shutdown(False)

    def _keeps(self, event: Any) -> bool:
        """Whether an event only says that the engine stopped, of a request that goes on with the next one."""
        if not self._keep_waiting or self._closing:
            return False
        lost = event.finish == "error" and event.error_type == EngineStoppedError.__name__
        handle = self._requests.get(event.request_id)
        if handle is None or not (lost or (self._stalled and event.finish == "abort" and not handle._asked_to_abort)):
            return False
        if self._kept.may_keep(handle):
            self._kept.keep(handle)
        else:
            why = event.error or self._stalled
            self._end(handle, EngineRestartedError(f"the request ended with the engine: {why}; send it again"))
        return True

    def _matcher_of(self, request_id: int, completion: int) -> GrammarMatcher | None:
        handle = self._requests.get(request_id)
        return None if handle is None else handle._matcher(completion)

    def _check_open(self) -> None:
        if self._cause is not None:
            raise EngineStoppedError(f"the engine stopped: {self._cause}; make a new LLM") from self._cause
        if self._closing:
            raise EngineStoppedError("the LLM was shut down; make a new one")

    def _consume(self) -> None:
        try:
            while True:
                stopped = self._engine.stopped  # read before the events, so that no event before the stop is missed
                events = self._engine.wait_events(0.0 if self._long else POLL)
                self._note_progress(events)
                self._log_notices()
                self._feeder.feed(events, self._matcher_of)  # masks come first, because the engine waits for them
                for request_id, error in self._feeder.failed():
                    self._give_up(request_id, as_error(error))
                for event in self._long.keep((*self._feeder.ended(), *events)):
                    self._dispatch(event)
                if (part := self._long.next_part()) is not None:
                    self._dispatch(part)
                if stopped and not events and not self._long:
                    if self._replace_lost():
                        continue
                    # At the interpreter's exit the engine may be shut down before this client is closed.
                    if not self._closing and self._engine.cause != SHUT_DOWN:
                        logger.error("the engine stopped by itself: it %s", self._engine.cause)
                    break
        except BaseException as error:  # every request that waits, and every later one, raises this error
            self._cause = error
            logger.exception("the thread that hands out events stopped, and the engine with it")
        finally:
            self._feeder.close()
            self._fail_rest()
        if self._cause is not None:  # without this thread nobody gets the engine's tokens
            self._engine.shutdown(False, 0)

    def _log_notices(self) -> None:
        for notice in self._engine.take_notices():
            logger.warning("%s", notice)

    def _replace_lost(self) -> bool:
        """Starts another engine in place of one that was lost. Returns False if the client is to stop."""
        cause = self._engine.cause
        if not self._is_replaced(cause):
            return False
        start_again = self._start_again
        assert start_again is not None
        if self._starts == MOST_STARTS:
            self._start_again = None  # from now on nobody waits for another engine
            for handle in self._kept.take():
                self._end(handle, EngineStoppedError(f"the engine {cause}, as {MOST_STARTS} before it; make a new LLM"))
            return False
        given_up = f"was given up: {self._stalled}" if self._stalled else cause
        logger.error("the engine %s; another one takes its place", given_up)
        with self._lock:
            self._starting = True
        kind = EngineRestartedError if self._keep_waiting else RankError
        self._fail_all(kind(f"the request ended with the engine, which {cause}; send it again"), self._kept)
        self._feeder.close()
        self._engine.shutdown(False, 0)
        if self._keep_waiting:
            self._engine = NoEngine(cause, self._engine.stats())
        engine = self._start_ranks(start_again)
        with self._room:
            self._engine, self._feeder, self._long = engine, MaskFeeder(engine), LongEvents()
            self._steps = 0
            self._stalled = ""
            self._last_progress = time.monotonic()
        self._kept.submit_to(engine, self._end)
        with self._room:
            self._starting = False
            self._room.notify_all()
        if self.on_replaced is not None:
            self.on_replaced()
        if self._closing:  # who closes may have stopped the engine before this one
            engine.shutdown(False, 0)
        return True

    def _is_replaced(self, cause: str) -> bool:
        """Whether another engine is to take the place of one that has stopped."""
        if self._start_again is None or self._closing:
            return False
        return cause != SHUT_DOWN or bool(self._stalled)

    def _end(self, handle: RequestHandle, error: Exception) -> None:
        handle._fail(error)
        self._forget(handle.request_id)
        self._observe(handle)

    def _start_ranks(self, start_again: Callable[[], Any]) -> Any:
        """Returns another engine. A rank that is lost while all start counts as the others do. Raises RankError after
        the last start, and what opening an engine raises."""
        while True:
            self._starts += 1
            try:
                return start_again()
            except RankError as error:
                if self._starts == MOST_STARTS or self._closing:
                    raise
                logger.error("the ranks could not start: %s; they start again", error)

    def _note_progress(self, events: list[Any]) -> None:
        """Notes the time of the last progress: an event, or a step. A long prompt takes many steps before its first
        event."""
        steps = self._steps if events else self._engine.stats()["steps"]
        if events or steps != self._steps:
            self._last_progress = time.monotonic()
        self._steps = steps

    def _dispatch(self, event: Any) -> None:
        handle = self._requests.get(event.request_id)
        if handle is None:
            return  # the request failed in this process, and the engine did not know yet
        if event.finish and self._keeps(event):
            return
        try:
            ended = handle._on_event(event)
        except BaseException as error:  # a failure of one request's text or reader must not end other requests
            self._give_up(event.request_id, as_error(error))
            return
        if ended:
            if handle.error is None:
                self._starts = 0
            self._forget(event.request_id)
            self._observe(handle)

    def _observe(self, handle: RequestHandle) -> None:
        for observer in self._observers:
            try:
                observer(handle.so_far(), handle.error)
            except BaseException:  # a failing observer must not end requests
                logger.exception("an observer of requests failed")

    def _give_up(self, request_id: int, error: Exception) -> None:
        handle = self._requests.get(request_id)
        self._engine.abort(request_id)
        if handle is not None:
            handle._fail(error)
        self._forget(request_id)
        if handle is not None:
            self._observe(handle)

    def _forget(self, request_id: int) -> None:
        with self._room:
            self._requests.pop(request_id, None)
            self._kept.forget(request_id)
            self._room.notify_all()

    def _fail_rest(self) -> None:
        if self._cause is not None:
            self._fail_all(EngineStoppedError(f"the engine stopped: {self._cause}"))
        else:
            self._fail_all(None)

    def _fail_all(self, error: Exception | None, kept: Container[int] = ()) -> None:
        """Ends all requests but `kept`. error: None means that the LLM was shut down."""
        with self._room:
            rest = [handle for number, handle in self._requests.items() if number not in kept]
            for handle in rest:
                del self._requests[handle.request_id]
                self._kept.forget(handle.request_id)
            self._room.notify_all()
        for handle in rest:
            shut = RequestAbortedError(f"request {handle.request_id}: the LLM was shut down before it finished")
            handle._fail(error or shut)
            self._observe(handle)


_open_clients: weakref.WeakSet[EngineClient] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes all clients at the interpreter's exit, because an engine's threads must end before Python does."""
    for client in list(_open_clients):
        try:
            client.close()
        except Exception:  # such as a full disk under a trace; the others must be closed too
            logger.exception("an engine was closed, and something failed then")
