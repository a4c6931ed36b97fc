"""Between callers and the C++ engine: request ids, and the one thread that hands out the engine's events."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

from tensorwright.errors import EngineStoppedError, QueueFullError, RequestAbortedError
from tensorwright.runtime import native
from tensorwright.runtime.async_requests import RequestHandle
from tensorwright.runtime.guided.mask_feeder import MaskFeeder
from tensorwright.runtime.home_process import HomeProcess
from tensorwright.runtime.outputs import RequestOutput
from tensorwright.runtime.request_state import RequestState

logger = logging.getLogger(__name__)
POLL = 0.5  # seconds that one wait lasts at most

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
        self._cause: BaseException | None = None
        self._observers: tuple[Observer, ...] = ()
        self._thread = threading.Thread(target=self._consume, name="tensorwright-events", daemon=True)
        self._thread.start()

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
        """Whether it takes requests: not closed, and its loop alive."""
        return self._home.is_here and not self._closing and self._cause is None and not self._engine.stopped

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
        return dict(self._engine.stats())

    def profile(self, enable: bool) -> None:
        self._home.check()
        self._engine.profile(enable)

    def read_profile(self) -> dict[str, Any]:
        self._home.check()
        return native.read_profile(self._engine)

    def close(self, drain: bool = False, timeout: float = 30.0) -> None:
        """Ends all requests (with drain: lets them finish, for at most `timeout` seconds) and stops the engine."""
        if not self._home.is_here:
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if self._engine.called_here:  # the garbage collector came in the engine's thread: it cannot wait for itself
            threading.Thread(target=self._stop, args=(drain, timeout), name="tensorwright-close").start()
        else:
            self._stop(drain, timeout)

    def _stop(self, drain: bool, timeout: float) -> None:
        try:
            self._engine.shutdown(drain, timeout)
        finally:
            if threading.current_thread() is not self._thread:
                self._thread.join()

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
                for request_id, error in self._feeder.feed(events, self._requests).items():
                    self._give_up(request_id, error)  # the loop waits for masks: they come before all else
                for event in events:
                    self._dispatch(event)
                if stopped and not events:
                    if not self._closing:
                        logger.error("the engine stopped by itself: it %s", self._engine.cause)
                    break
        except Exception as error:  # told to everybody who waits, and to whoever comes later
            self._cause = error
        finally:
            self._fail_rest()

    def _dispatch(self, event: Any) -> None:
        handle = self._requests.get(event.request_id)
        if handle is None:
            return  # it failed here, and the engine had not yet heard of it
        try:
            ended = handle._on_event(event)
        except Exception as error:  # whatever one request's text or reader does must not end the others
            self._give_up(event.request_id, error)
            return
        if ended:
            self._forget(event.request_id)
            self._observe(handle)

    def _observe(self, handle: RequestHandle) -> None:
        for observer in self._observers:
            try:
                observer(handle.so_far(), handle.error)
            except Exception:  # who counts requests must not end them
                logger.exception("an observer of requests failed")

    def _give_up(self, request_id: int, error: BaseException) -> None:
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
