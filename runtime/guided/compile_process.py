"""Compiles grammars in the process of compile_child.py, and turns every way in which that can fail into an error."""

from __future__ import annotations

import logging
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from tensorwright.errors import InvalidRequestError, QueueFullError, TemporarilyUnavailableError
from tensorwright.runtime.base.forks import HomeProcess, ProcessLock
from tensorwright.runtime.guided.child_link import Child, Gone, SpelledVocabulary, StartingChild
from tensorwright.runtime.guided.compile_queue import CompileQueue, Place
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.translation import name_of

logger = logging.getLogger(__name__)
LIMIT_S = 5.0
"""The seconds that a grammar may take in the child, its wait for a place included."""
PROCESSOR_S = LIMIT_S / 2
"""The seconds of a processor that the library may take for a grammar in the child. The library then does the same work
once more in this process, where nothing can stop it, so this bounds that time too."""
MEMORY = 512 << 20
"""The bytes that a grammar may take while it is compiled."""
MAX_BYTES = 16 << 20
"""The bytes that a compiled grammar may take. Each running completion has a copy."""

Made = TypeVar("Made")
_shared: weakref.WeakValueDictionary[SpelledVocabulary, CompileProcess] = weakref.WeakValueDictionary()
_sharing = ProcessLock()


def process_for(vocabulary: SpelledVocabulary) -> CompileProcess:
    """Returns the process that all engines with this vocabulary share. It lives as long as one of them holds it."""
    with _sharing:
        process = _shared.get(vocabulary)
        if process is None or not process.is_here:
            process = _shared[vocabulary] = CompileProcess(vocabulary)
        return process


class CompileProcess:
    """The process that compiles grammars for one vocabulary. It is thread-safe.

    The child runs from start() on. If somebody kills the child, the next job starts a new one.
    """

    def __init__(self, vocabulary: SpelledVocabulary):
        self._vocabulary = vocabulary
        self._home = HomeProcess()
        self._queue = CompileQueue()
        self._lock = threading.Lock()  # guards the two fields below; no thread holds it while waiting for a child
        self._child: Child | None = None
        self._starting: StartingChild | None = None

    @property
    def is_here(self) -> bool:
        return self._home.is_here

    @property
    def pid(self) -> int | None:
        """The child's process id, None if it was not started."""
        return None if self._child is None else self._child.process.pid

    def start(self) -> None:
        """Starts the child, and waits without a limit until it has read the vocabulary.

        Raises ValueError, in the library's words, for a vocabulary that the library cannot use, and
        TemporarilyUnavailableError if the system does not start the process.
        """
        self._running(None, None)

    def compile(
        self,
        params: GuidedDecodingParams,
        limits: dict[str, int],
        finish: Callable[[str, int, float], Made],
    ) -> Made:
        """Compiles a grammar in the child and returns the result of `finish`.

        finish: gets the grammar in the library's form, the bytes that it took, and the seconds of a processor. Raises
        InvalidRequestError for a grammar that the library refuses, or that takes too long or too much memory;
        QueueFullError if other grammars kept it waiting; TemporarilyUnavailableError if no child runs.
        """
        ends = time.monotonic() + LIMIT_S
        child = self._restarted(None, ends)
        with self._queue.place(ends) as place:
            answer = self._ask(child, params, limits, place, ends)
            if "refused" in answer:
                raise InvalidRequestError(answer["refused"])
            if answer["bytes"] > MAX_BYTES:
                raise _too_much(params, MAX_BYTES)
            if answer["seconds"] > PROCESSOR_S:
                raise _cannot(params, f"to compile it takes more than {PROCESSOR_S:g} s of a processor")
            return finish(answer["text"], answer["bytes"], answer["seconds"])

    def _ask(
        self, child: Child, params: GuidedDecodingParams, limits: dict[str, int], place: Place, ends: float
    ) -> dict[str, Any]:
        try:
            return _answer(child, params, limits, place, ends)
        except Gone:  # the system or an administrator killed the child
            child = self._restarted(child, ends)
        try:
            return _answer(child, params, limits, place, ends)
        except Gone as error:
            logger.error("the process that compiles grammars was killed twice: %s", error)
            raise TemporarilyUnavailableError(
                "the process that compiles grammars was killed twice while it compiled this one; try again later"
            ) from error

    def _restarted(self, gone: Child | None, ends: float) -> Child:
        """Does the same as `_running`, but a child once read this vocabulary, so a ValueError is no fault of a request
        and becomes TemporarilyUnavailableError."""
        try:
            return self._running(gone, ends)
        except ValueError as error:
            raise _not_started() from error

    def _running(self, gone: Child | None, ends: float | None) -> Child:
        """Returns a child that runs and is not `gone`. If none runs, starts one in a thread of its own and waits for
        it.

        ends: the end of the wait, in seconds of time.monotonic(); None waits without a limit.
        """
        self._home.check()
        with self._lock:
            if self._child is not None and (self._child is gone or not self._child.runs):
                self._child.end()
                self._child = None
            if self._child is not None:
                return self._child
            if self._starting is None:
                self._starting = self._begin()
            starting = self._starting
        if not starting.wait(None if ends is None else max(0.0, ends - time.monotonic())):
            raise TemporarilyUnavailableError(
                "the process that compiles grammars is still being started; try again later"
            )
        with self._lock:
            if self._starting is starting:
                self._child, self._starting = starting.child, None
                if starting.error is not None:
                    logger.error("the process that compiles grammars does not start: %s", starting.error)
        return _started(starting)

    def _begin(self) -> StartingChild:
        try:
            return StartingChild(self._vocabulary)
        except RuntimeError as error:
            logger.error("there is no thread to start the process that compiles grammars: %s", error)
            raise _not_started() from error


def _started(starting: StartingChild) -> Child:
    """Returns the child, or raises the error of its start. Each waiting thread raises an error object of its own,
    because a shared error would keep the frames of all waiting threads alive."""
    if starting.child is not None:
        return starting.child
    if isinstance(starting.error, ValueError):
        raise ValueError(str(starting.error))
    raise _not_started() from starting.error


def _not_started() -> TemporarilyUnavailableError:
    """Returns the error for a child that did not start. Only the log gives the reason, because the reason may name
    files of this machine."""
    return TemporarilyUnavailableError("the process that compiles grammars does not start; try again later")


def _answer(
    child: Child, params: GuidedDecodingParams, limits: dict[str, int], place: Place, ends: float
) -> dict[str, Any]:
    """Returns the child's answer to a job. Raises Gone, and what CompileProcess.compile raises."""
    job = {"params": _fields(params), "limits": limits, "memory": MEMORY}
    begun = time.monotonic()
    try:
        return _explained(params, child.ask(job, place, ends))
    except TimeoutError:
        if ends - begun < LIMIT_S / 2:
            raise QueueFullError(
                "this grammar was begun too late, after others or since the process that compiles them was started; "
                "try again later"
            ) from None
        raise _cannot(params, f"to compile it takes longer than {ends - begun:.1f} s") from None


def _fields(params: GuidedDecodingParams) -> dict[str, Any]:
    given = {params.kind: getattr(params, params.kind)}
    given |= {name: getattr(params, name) for name in ("whitespace_pattern", "frame")}
    return {name: value for name, value in given.items() if value is not None}


def _explained(params: GuidedDecodingParams, answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer. Raises InvalidRequestError if the fork ended without one."""
    if "ended" not in answer:
        return answer
    status = answer["ended"]
    if status in (-signal.SIGABRT, -signal.SIGKILL):
        raise _too_much(params, MEMORY)
    raise _cannot(
        params,
        "it nests too deep" if status == -signal.SIGSEGV else f"the process that compiled it ended with {status}",
    )


def _too_much(params: GuidedDecodingParams, most: int) -> InvalidRequestError:
    return _cannot(params, f"it takes more than {most >> 20} MiB of memory")


def _cannot(params: GuidedDecodingParams, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name_of(params)} cannot be followed: {why}; make it smaller")
