"""The serving process's side of compile_child.py: starts it, asks it, and turns every way a grammar can end there into
an answer."""

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
"""What a grammar may take in the child, its wait for a place included."""
PROCESSOR_S = LIMIT_S / 2
"""Seconds of a processor that the library may take for it there. In this process it does the same work once more, which
nothing can end: this is its bound."""
MEMORY = 512 << 20
"""Bytes that it may take while it is compiled."""
MAX_BYTES = 16 << 20
"""And once it is; each completion that runs has a copy."""

Made = TypeVar("Made")
_shared: weakref.WeakValueDictionary[SpelledVocabulary, CompileProcess] = weakref.WeakValueDictionary()
_sharing = ProcessLock()


def process_for(vocabulary: SpelledVocabulary) -> CompileProcess:
    """One for all engines of this process that have the same vocabulary, as long as any of them holds it."""
    with _sharing:
        process = _shared.get(vocabulary)
        if process is None or not process.is_here:
            process = _shared[vocabulary] = CompileProcess(vocabulary)
        return process


class CompileProcess:
    """Thread-safe. The child runs from start() on, and again after it was killed."""

    def __init__(self, vocabulary: SpelledVocabulary):
        self._vocabulary = vocabulary
        self._home = HomeProcess()
        self._queue = CompileQueue()
        self._lock = threading.Lock()  # of the two below; nobody waits for a child while it is held
        self._child: Child | None = None
        self._starting: StartingChild | None = None

    @property
    def is_here(self) -> bool:
        return self._home.is_here

    @property
    def pid(self) -> int | None:
        """Of the child, if it was started."""
        return None if self._child is None else self._child.process.pid

    def start(self) -> None:
        """Returns when the child has read the vocabulary, however long that takes. ValueError, in the library's words,
        for a vocabulary that it cannot use. TemporarilyUnavailableError if the system does not let it start."""
        self._running(None, None)

    def compile(
        self,
        params: GuidedDecodingParams,
        limits: dict[str, int],
        finish: Callable[[str, int, float], Made],
    ) -> Made:
        """finish: makes what is returned of the grammar in the library's form, the bytes that it took, and the seconds
        of a processor.

        InvalidRequestError for a grammar that the library refuses, or that takes too long or too much memory;
        QueueFullError if others kept it waiting; TemporarilyUnavailableError if there is no process to compile it in.
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
        except Gone:  # it was killed: by the system, or by whoever looks after processes here
            child = self._restarted(child, ends)
        try:
            return _answer(child, params, limits, place, ends)
        except Gone as error:
            logger.error("the process that compiles grammars was killed twice: %s", error)
            raise TemporarilyUnavailableError(
                "the process that compiles grammars was killed twice while it compiled this one; try again later"
            ) from error

    def _restarted(self, gone: Child | None, ends: float) -> Child:
        """The same when the vocabulary was read before: no fault of a request's."""
        try:
            return self._running(gone, ends)
        except ValueError as error:
            raise _not_started() from error

    def _running(self, gone: Child | None, ends: float | None) -> Child:
        """The child, which is not `gone`. Where none runs, one is started in a thread of its own, and this one waits
        for it until `ends`, in seconds of time.monotonic(), if that is given."""
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
    """An error is made anew for each who waits: the frames that it comes through hold whoever waits."""
    if starting.child is not None:
        return starting.child
    if isinstance(starting.error, ValueError):
        raise ValueError(str(starting.error))
    raise _not_started() from starting.error


def _not_started() -> TemporarilyUnavailableError:
    """The log says why: that may name files of this machine."""
    return TemporarilyUnavailableError("the process that compiles grammars does not start; try again later")


def _answer(
    child: Child, params: GuidedDecodingParams, limits: dict[str, int], place: Place, ends: float
) -> dict[str, Any]:
    """Of the child, unless the fork ended without one. Gone, or what CompileProcess.compile raises."""
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
    given = {params.kind: getattr(params, params.kind), "whitespace_pattern": params.whitespace_pattern}
    return {name: value for name, value in given.items() if value is not None}


def _explained(params: GuidedDecodingParams, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, unless the fork ended without one."""
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
