"""Between callers and the C++ engine: request ids, and the one thread that hands out the engine's events."""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tensorwright.errors import EngineStoppedError, QueueFullError, RequestAbortedError
from tensorwright.runtime.base.home_process import HomeProcess
from tensorwright.runtime.base.panics import as_error
from tensorwright.runtime.engine import native
from tensorwright.runtime.guided.mask_feeder import MaskFeeder
from tensorwright.runtime.guided.matcher import GrammarMatcher
from tensorwright.runtime.requests.async_requests import RequestHandle
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_state import RequestState

logger = logging.getLogger(__name__)
POLL = 0.5  # seconds that one wait lasts at most
SHUT_DOWN = "was shut down"  # why an engine stopped that was told to, in the words of runtime/core/engine/engine.cc
COLLECTED_WAIT = 1.0  # seconds that whoever drops an LLM waits for its end at most

Observer = Callable[[RequestOutput, BaseException | None], None]


class EngineClient:
    """Thread-safe. `engine` is a `_runtime.Engine`: submit, abort, wait_events, stats, shutdown, stopped.

    In a fork of its process it has neither the engine's threads nor its own: there all raises ForkedEngineError, but
    `running` is False and `close` does nothing.
    """

    def __init__(self, engine: Any):
        self._home = HomeProcess()
        self._engine = engine
        self._feeder = MaskFeeder(engine)
        self._ids = itertools.count(1)
        self._requests: dict[int, RequestHandle] = {}
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # notified when a request ends
        self._closing = False  # no new requests
        self._close_once = threading.Lock()  # never given back
        self._last_progress = time.monotonic()
        self._steps = 0  # that the engine had made when nothing was heard of it
        self._cause: BaseException | None = None
        self._observers: tuple[Observer, ...] = ()
        self._thread = threading.Thread(target=self._consume, name="tensorwright-events", daemon=True)
        self._thread.start()
        _open_clients.add(self)

    def submit(
        self,
        make_state: Callable[[int], RequestState],
        sampling: Any,
        wait_for_room: bool = False,
        first_mask: Any = None,
    ) -> RequestHandle:
        """make_state: builds the request's state from its id. With wait_for_room a full queue is waited for,
        else it raises QueueFullError. first_mask: of a guided request, the tokens that may come first."""
        self._home.check()
        while True:
            state = make_state(next(self._ids))
            handle = RequestHandle(state, self.abort)
            with self._lock:
                self._check_open()
                if not self._requests:
                    self._last_progress = time.monotonic()  # there was none to wait for
                self._requests[state.request_id] = handle
            try:
                self._engine.submit(state.request_id, state.prompt_token_ids, sampling, first_mask)
                return handle
            except QueueFullError:
                self._forget(state.request_id)
                if not wait_for_room:
                    raise
                with self._room:
                    self._room.wait(POLL)
            except BaseException:
                self._forget(state.request_id)
                raise

    def abort(self, request_id: int, completion: int = -1) -> bool:
        """False if the request has ended. completion: only that one, -1: all."""
        self._home.check()
        return self._engine.abort(request_id, completion)

    def abort_for_caller(self, request_id: int) -> bool:
        """The same as the request's own handle would; False also for an id that never was."""
        self._home.check()
        with self._lock:
            handle = self._requests.get(request_id)
        return handle is not None and handle.abort()

    @property
    def running(self) -> bool:
        """Whether it takes requests: not closed, its loop alive, and the thread that hands out events as well."""
        if not self._home.is_here or self._closing or self._cause is not None:
            return False
        return self._thread.is_alive() and not self._engine.stopped

    @property
    def stalled_seconds(self) -> float:
        """For how long there have been requests, and neither a step that ended nor an event of any; 0 without requests.
        It takes no lock."""
        last = self._last_progress  # before the question for requests: the first of them moves it
        return max(0.0, time.monotonic() - last) if self._requests else 0.0

    def check_process(self) -> None:
        """Raises ForkedEngineError in a fork of the process that made it."""
        self._home.check()

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

    def close(self, drain: bool = False, timeout: float = 30.0) -> None:
        """Ends all requests (with drain: lets them finish, for at most `timeout` seconds) and stops the engine."""
        if not self._home.is_here or not self._close_once.acquire(blocking=False):
            return
        self._closing = True
        if self._engine.called_here:  # it cannot wait for itself
            threading.Thread(target=self._stop, args=(drain, timeout), name="tensorwright-close").start()
        else:
            self._stop(drain, timeout)

    def close_dropped(self) -> None:
        """`close` for the garbage collector, which comes in any thread and inside any lock, maybe one that closing
        waits for: another thread closes. This one waits a second for it at most, so that whoever drops an LLM to make
        room for another finds the room."""
        if not self._home.is_here:
            return
        closer = threading.Thread(target=self.close, name="tensorwright-close")
        try:
            closer.start()
        except RuntimeError:  # there is no thread to be had, or no more since the interpreter exits
            self.close()
            return
        if threading.current_thread() is not self._thread and not self._engine.called_here:
            closer.join(COLLECTED_WAIT)

    def _stop(self, drain: bool, timeout: float) -> None:
        try:
            self._engine.shutdown(drain, timeout)
        finally:
            if threading.current_thread() is not self._thread:
                self._thread.join()

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
                stopped = self._engine.stopped  # before the events: what came until then is among them
                events = self._engine.wait_events(POLL)
                self._note_progress(events)
                self._feeder.feed(events, self._matcher_of)  # masks come before all else
                for request_id, error in self._feeder.failed():
                    self._give_up(request_id, as_error(error))
                for event in (*self._feeder.ended(), *events):
                    self._dispatch(event)
                if stopped and not events:
                    if not self._closing and self._engine.cause != SHUT_DOWN:  # an exit may stop it before it closes
                        logger.error("the engine stopped by itself: it %s", self._engine.cause)
                    break
        except BaseException as error:  # told to everybody who waits, and to whoever comes later
            self._cause = error
            logger.exception("the thread that hands out events stopped, and the engine with it")
        finally:
            self._feeder.close()
            self._fail_rest()
        if self._cause is not None:  # nobody would hear of its tokens
            self._engine.shutdown(False, 0)

    def _note_progress(self, events: list[Any]) -> None:
        """A long prompt takes many steps before there is an event of it."""
        steps = self._steps if events else self._engine.stats()["steps"]
        if events or steps != self._steps:
            self._last_progress = time.monotonic()
        self._steps = steps

    def _dispatch(self, event: Any) -> None:
        handle = self._requests.get(event.request_id)
        if handle is None:
            return  # it failed here, and the engine had not yet heard of it
        try:
            ended = handle._on_event(event)
        except BaseException as error:  # whatever one request's text or reader does must not end the others
            self._give_up(event.request_id, as_error(error))
            return
        if ended:
            self._forget(event.request_id)
            self._observe(handle)

    def _observe(self, handle: RequestHandle) -> None:
        for observer in self._observers:
            try:
                observer(handle.so_far(), handle.error)
            except BaseException:  # who counts requests must not end them
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
            self._room.notify_all()

    def _fail_rest(self) -> None:
        with self._room:
            rest = list(self._requests.values())
            self._requests.clear()
            self._room.notify_all()
        for handle in rest:
            if self._cause is not None:
                handle._fail(EngineStoppedError(f"the engine stopped: {self._cause}"))
            else:
                handle._fail(
                    RequestAbortedError(f"request {handle.request_id}: the LLM was shut down before it finished")
                )
            self._observe(handle)


_open_clients: weakref.WeakSet[EngineClient] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """At the interpreter's exit: an engine's threads must be gone before Python is."""
    for client in list(_open_clients):
        client.close()
