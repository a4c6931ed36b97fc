"""Lets callers wait for a request, read it while it runs, and abort it.

The consumer thread writes (`_on_event`, `_fail`); any number of threads and event loops read. A reader takes a snapshot
when it wants one, and every snapshot holds the whole output so far, so a slow reader costs nothing and misses nothing.
To stream a long answer, use `request_news.py`, whose cost grows with the new output only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from tensorwright import errors
from tensorwright.errors import EngineStoppedError, RequestAbortedError, TensorwrightError
from tensorwright.runtime.base.forks import HomeProcess
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_state import RequestState

if TYPE_CHECKING:  # a caller that waits in an event loop has imported asyncio already; others need not load it
    import asyncio

    from tensorwright.runtime.guided.matcher import GrammarMatcher


logger = logging.getLogger(__name__)


class RequestHandle:
    """The handle of a running request, which `LLM.generate_async` returns.

    `await` gives the finished RequestOutput. `for` and `async for` give partial RequestOutputs, the finished one last.

    A request that `abort()` ended finishes with finish_reason "abort". A request that failed raises its error in every
    caller that waits for it. Cancelling a task that waits, or leaving a loop early, aborts the request. In a fork of
    the process that made the handle, every method and property but request_id raises ForkedEngineError.
    """

    def __init__(self, state: RequestState, abort: Callable[..., bool]):
        """abort: aborts a request, given its id, or one completion, given the id and the completion's number."""
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
        """The error with which the request ended, None if there is none."""
        self._home.check()
        return self._error

    def so_far(self) -> RequestOutput:
        """Returns the output so far, also of a request that failed. It never waits and never raises the request's
        error."""
        self._home.check()
        with self._changed:
            return self._state.output()

    def abort(self) -> bool:
        """Ends the request soon. The output so far stays readable. Returns False if the request had ended already."""
        self._home.check()
        # This takes no lock: the garbage collector may call it, in any thread and inside any lock, to end an iterator.
        if self._done:
            return False
        self._asked_to_abort = True
        return self._abort(self.request_id)

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Waits in this thread for the end and returns the output. Raises TimeoutError after `timeout` seconds; the
        request then goes on."""
        self._home.check()
        with self._changed:
            if not self._changed.wait_for(lambda: self._done, timeout):
                raise TimeoutError(f"request {self.request_id} is unfinished after {timeout} s")
            return self._show(self._state.output)

    def latest(self) -> RequestOutput:
        """Returns the output so far, without waiting. Raises the request's error."""
        self._home.check()
        with self._changed:
            return self._show(self._state.output)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback` at once, and again after every change until the request has ended.

        The later calls come from the thread that dispatches the engine's events. There the callback must be quick and
        must not read this request.
        """
        self._home.check()
        with self._changed:
            self._listeners.append(callback)
        callback()

    def __iter__(self) -> Iterator[RequestOutput]:
        return self._each(self._state.output)

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self._each_in_loop(self._state.output)

    def _each(self, output: Callable[[], RequestOutput]) -> Iterator[RequestOutput]:
        """Yields the result of `output` after each change of the state, the last time after the end."""
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
            # It reads the version before _done, so that it cannot miss an end that comes between the two.
            while (seen := self._version, self._done)[1] is False:
                await self._wait_for_change(seen)
        except asyncio.CancelledError:
            self.abort()
            raise
        return self.result()

    def _leave(self) -> None:
        """Aborts the request because its reader has left. In a fork, where the garbage collector may call it, it does
        nothing."""
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

    # The members below are for EngineClient and its helpers; those that change the request are for the consumer thread.

    @property
    def _prompt_token_ids(self) -> list[int]:
        return self._state.prompt_token_ids

    @property
    def _has_begun(self) -> bool:
        """Whether the request has output of any kind, or has ended."""
        return self._version > 0

    def _describe(self) -> dict[str, Any]:
        """Returns the sizes of the request for a report, and nothing of its text. It takes no lock, which a thread that
        hangs might hold."""
        state = self._state
        return {
            "request_id": self.request_id,
            "prompt_tokens": len(state.prompt_token_ids),
            "max_tokens": state.params.max_tokens,
            "tokens": [completion.length for completion in state.completions],
            "done": self._done,
        }

    def _matcher(self, completion: int) -> GrammarMatcher | None:
        """Returns the matcher of a completion that goes on; None if the completion has ended or has no grammar."""
        state = self._state.completions[completion]
        return None if state.finished else state.matcher

    def _on_event(self, event: Any) -> bool:
        """Applies one event of the engine. Returns True if the event ended the request."""
        with self._changed:
            completion = self._state.completions[event.completion]
            if completion.finished:
                return False  # a stop string ended the completion, so its later events are ignored
            self._state.apply(event, time.monotonic())
            if completion.stopped_early:
                self._abort(self.request_id, event.completion)  # this call returns at once
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
        """Ends the request with an error, unless the request has ended already."""
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
            except BaseException:  # a failing listener must end neither this request nor others
                logger.exception("a listener of request %d failed", self.request_id)
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:
                self._asked_to_abort = True  # the event loop was closed, so its waiter no longer exists
        return False

    def _show(self, output: Callable[[], RequestOutput]) -> RequestOutput:
        """Returns the result of `output`, or raises the request's error. The caller holds the lock."""
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
    # The server does not show this message to clients, so the log must have it.
    logger.error("a request ended in the engine with %s: %s", name, message)
    return EngineStoppedError(f"{name}: {message}")
