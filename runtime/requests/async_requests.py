"""One request in flight: what its events add up to, and the handle through which callers wait for it.

The consumer thread writes (`_on_event`, `_fail`); any number of threads and event loops read. Readers take a snapshot
when they want one, so a slow reader costs nothing and misses nothing: every snapshot holds the whole output so far.
Who streams a long answer reads it through `request_news.py` instead, at the cost of what is new.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from tensorwright import errors
from tensorwright.errors import EngineStoppedError, RequestAbortedError, TensorwrightError
from tensorwright.runtime.base.home_process import HomeProcess
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_state import RequestState

if TYPE_CHECKING:  # whoever waits in an event loop has imported it; nobody else pays for it
    import asyncio

    from tensorwright.runtime.guided.matcher import GrammarMatcher


logger = logging.getLogger(__name__)


class RequestHandle:
    """What `LLM.generate_async` returns. Awaitable (the finished RequestOutput), iterable in both worlds
    (`async for`, `for`: partial RequestOutputs, the finished one last), and abortable.

    A request ended by `abort()` finishes with finish_reason "abort"; one that failed raises its error wherever it is
    waited for. Cancelling a task that waits, or leaving a loop early, aborts the request. In a fork of the process that
    made it all but request_id raises ForkedEngineError.
    """

    def __init__(self, state: RequestState, abort: Callable[..., bool]):
        """abort: of a request id, or of it and the number of a completion."""
        self._home = HomeProcess()
        self._state = state
        self._abort = abort
        self._asked_to_abort = False
        self._changed = threading.Condition()
        self._version = 0  # grows with every change
        self._error: BaseException | None = None
        self._done = False
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._listeners: list[Callable[[], None]] = []

    @property
    def request_id(self) -> int:
        return self._state.request_id

    @property
    def done(self) -> bool:
        self._home.check()
        return self._done

    @property
    def error(self) -> BaseException | None:
        """What the request ended with, if not with an output."""
        self._home.check()
        return self._error

    def so_far(self) -> RequestOutput:
        """What there is, also of a request that failed; it never waits, nor raises its error."""
        self._home.check()
        with self._changed:
            return self._state.output()

    def abort(self) -> bool:
        """Ends the request soon; what was generated stays readable. False if it had already ended."""
        self._home.check()
        # No lock: the garbage collector, when it ends an iterator, comes here in any thread and inside any other lock.
        if self._done:
            return False
        self._asked_to_abort = True
        return self._abort(self.request_id)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Waits in this thread for the end. TimeoutError after `timeout` seconds; the request then goes on."""
        self._home.check()
        with self._changed:
            if not self._changed.wait_for(lambda: self._done, timeout):
                raise TimeoutError(f"request {self.request_id} is unfinished after {timeout} s")
            return self._show(self._state.output)

    def latest(self) -> RequestOutput:
        """What there is now, without waiting; raises the request's error."""
        self._home.check()
        with self._changed:
            return self._show(self._state.output)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls it at once, and again after every change, until the request has ended: from the thread that hands out
        the engine's events, which it must neither hold up nor read this request in."""
        self._home.check()
        with self._changed:
            self._listeners.append(callback)
        callback()

    def __iter__(self) -> Iterator[RequestOutput]:
        return self._each(self._state.output)

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._each_in_loop(self._state.output)

    def _each(self, output: Callable[[], RequestOutput]) -> Iterator[RequestOutput]:
        """What `output` makes of the state after each change, the last time after the end."""
        seen = 0
        try:
            while True:
                self._home.check()
                with self._changed:
                    while self._version == seen:
                        self._changed.wait()
                    seen, shown = self._version, self._show(output)
                yield shown
                if shown.finished:
                    return
        except GeneratorExit:
            self._leave()
            raise

    async def _each_in_loop(self, output: Callable[[], RequestOutput]) -> AsyncIterator[RequestOutput]:
        import asyncio

        seen = 0
        try:
            while True:
                await self._wait_for_change(seen)
                with self._changed:
                    seen, shown = self._version, self._show(output)
                yield shown
                if shown.finished:
                    return
        except (asyncio.CancelledError, GeneratorExit):
            self._leave()
            raise

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self._finished().__await__()

    async def _finished(self) -> RequestOutput:
        import asyncio

        try:
            while (seen := self._version, self._done)[1] is False:  # the version first, lest the end slip between
                await self._wait_for_change(seen)
        except asyncio.CancelledError:
            self.abort()
            raise
        return self.result()

    def _leave(self) -> None:
        """Nobody reads on. In a fork the garbage collector may come here, and there is nothing to abort."""
        if self._home.is_here:
            self.abort()

    async def _wait_for_change(self, seen: int) -> None:
        import asyncio

        self._home.check()
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._version > seen:
                return
            waiter = (loop, loop.create_future())
            self._waiters.append(waiter)
        try:
            await waiter[1]
        finally:
            with self._changed:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)

    # The consumer thread's side: EngineClient calls it, nobody else.

    def _matcher(self, completion: int) -> GrammarMatcher | None:
        """Of a completion that is to go on; None if it has ended or is free to say what it likes."""
        state = self._state.completions[completion]
        return None if state.finished else state.matcher

    def _on_event(self, event: Any) -> bool:
        """Takes one event of the engine; True if it was the request's last."""
        with self._changed:
            completion = self._state.completions[event.completion]
            if completion.finished:
                return False  # by a stop string; what the engine says of it later is not heard
            self._state.apply(event, time.monotonic())
            if completion.stopped_early:
                self._abort(self.request_id, event.completion)  # returns at once
                return self._end_or_go_on()
            if event.finish == "abort" and not self._asked_to_abort:
                error: BaseException = RequestAbortedError(
                    f"request {self.request_id} was aborted before it finished, because the LLM was shut down"
                )
                return self._end(error)
            if event.finish == "error":
                return self._end(_engine_error(event.error_type, event.error))
            return self._end_or_go_on()

    def _fail(self, error: BaseException) -> None:
        """Ends the request with an error, unless it has ended."""
        with self._changed:
            if not self._done:
                self._end(error)

    def _end_or_go_on(self) -> bool:
        return self._end(None) if self._state.finished else self._changed_now()

    def _end(self, error: BaseException | None) -> bool:
        self._error = error
        self._done = True
        self._changed_now()
        return True

    def _changed_now(self) -> bool:
        self._version += 1
        self._changed.notify_all()
        for tell in self._listeners:
            try:
                tell()
            except BaseException:  # who listens must not end the request, nor those of others
                logger.exception("a listener of request %d failed", self.request_id)
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:
                self._asked_to_abort = True  # that loop was closed under its waiter; nobody is left to tell
        return False

    def _show(self, output: Callable[[], RequestOutput]) -> RequestOutput:
        """What `output` makes of the state. The lock is held."""
        if self._error is not None:
            raise self._error
        return output()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _engine_error(name: str, message: str) -> TensorwrightError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TensorwrightError):
        return kind(message)
    logger.error("a request ended in the engine with %s: %s", name, message)  # a client of the server is not told
    return EngineStoppedError(f"{name}: {message}")
