"""The serving process's side of compile_child.py: starts it, asks it, and turns every way a grammar can end there into
an answer."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from tensorwright.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from tensorwright.runtime.guided.compile_queue import QUICK_S, CompileQueue, Place
from tensorwright.runtime.guided.other_python import environment, interpreter
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.home_process import HomeProcess, ProcessLock

logger = logging.getLogger(__name__)
LIMIT_S = 5.0
"""What a grammar may take, its wait for a place included."""
MEMORY = 512 << 20
"""Bytes that it may take while it is compiled."""
MOST_BYTES = 16 << 20
"""And once it is; each completion that runs has a copy."""
ANSWER_BYTES = 4 << 20  # of the child
START_S = 120.0  # to read the vocabulary
MODULE = "tensorwright.runtime.guided.compile_child"
LAST_WORDS = 2000  # characters of a child's stderr that an error quotes

Made = TypeVar("Made")


@dataclass(frozen=True)
class SpelledVocabulary:
    """lengths, spelled: of each token in bytes, and all their bytes. ends: the tokens that end a text."""

    lengths: bytes  # uint32
    spelled: bytes
    ends: tuple[int, ...]

    def header(self) -> dict[str, Any]:
        tokens = len(self.lengths) // array("I").itemsize
        return {"parent": os.getpid(), "ends": self.ends, "tokens": tokens, "bytes": len(self.spelled)}


class Gone(Exception):
    """The child has ended, through no fault of a grammar."""


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
        self._starting = threading.Lock()
        self._child: Child | None = None

    @property
    def is_here(self) -> bool:
        return self._home.is_here

    @property
    def pid(self) -> int | None:
        """Of the child, if it was started."""
        return None if self._child is None else self._child.process.pid

    def start(self) -> None:
        """ValueError, in the library's words, for a vocabulary that it cannot use. EngineStoppedError if the system
        does not let it start."""
        self._started(None)

    def compile(
        self,
        params: GuidedDecodingParams,
        limits: dict[str, int],
        finish: Callable[[str, int], Made],
    ) -> Made:
        """finish: makes what is returned of the grammar in the library's form, and the bytes that it took.

        InvalidRequestError for a grammar that the library refuses, or that takes too long or too much memory;
        QueueFullError if others kept it waiting; EngineStoppedError if there is no process to compile it in.
        """
        ends = time.monotonic() + LIMIT_S
        with self._queue.place(ends) as place:
            answer = self._ask(params, limits, place, ends)
            if "refused" in answer:
                raise InvalidRequestError(answer["refused"])
            if answer["bytes"] > MOST_BYTES:
                raise _too_much(params, MOST_BYTES)
            return finish(answer["text"], answer["bytes"])

    def _ask(self, params: GuidedDecodingParams, limits: dict[str, int], place: Place, ends: float) -> dict[str, Any]:
        job = {"params": _fields(params), "limits": limits, "memory": MEMORY}
        child = self._restarted(None)
        begun = time.monotonic()
        try:
            try:
                return _explained(params, child.ask(job, place, ends))
            except Gone:  # it was killed: by the system, or by whoever looks after processes here
                return _explained(params, self._restarted(child).ask(job, place, ends))
        except Gone as error:
            logger.error("the process that compiles grammars was killed twice: %s", error)
            raise EngineStoppedError(f"the process that compiles grammars was killed twice ({error})") from error
        except TimeoutError:
            if ends - begun < LIMIT_S / 2:
                raise QueueFullError("other grammars kept this one waiting too long; try again later") from None
            raise InvalidRequestError(
                f"guided_decoding: {params.kind} cannot be followed: to compile it takes longer than "
                f"{ends - begun:.1f} s; make it smaller"
            ) from None

    def _restarted(self, gone: Child | None) -> Child:
        """The same when the vocabulary was read before: no fault of a request's."""
        try:
            return self._started(gone)
        except ValueError as error:
            raise _not_started(error) from error

    def _started(self, gone: Child | None) -> Child:
        """The child that runs, which is not `gone`."""
        self._home.check()
        with self._starting:
            if self._child is not None and (self._child is gone or not self._child.runs):
                self._child.end()
                self._child = None
            if self._child is None:
                try:
                    self._child = Child(self._vocabulary)
                except OSError as error:
                    raise _not_started(error) from error
            return self._child


class Child:
    """Runs from its making on, until end() or until nobody holds it. ValueError as start() has it."""

    def __init__(self, vocabulary: SpelledVocabulary):
        self._control, theirs = socket.socketpair()
        self._sending = threading.Lock()
        with tempfile.TemporaryFile() as words:
            with theirs:  # closed before anything is waited for: else the child's end would not be heard
                self.process = subprocess.Popen(
                    [interpreter(), "-P", "-m", MODULE],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    env=environment(),
                    start_new_session=True,
                )
            self.end = weakref.finalize(self, _end, self._control, self.process, HomeProcess())
            try:
                self._send_vocabulary(vocabulary, words)
            except BaseException:
                self.end()
                raise

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def _send_vocabulary(self, vocabulary: SpelledVocabulary, words: IO[bytes]) -> None:
        self._control.settimeout(START_S)
        try:
            self._control.sendall(json.dumps(vocabulary.header()).encode() + b"\n")
            self._control.sendall(vocabulary.lengths)
            self._control.sendall(vocabulary.spelled)
            answer = Answers(self._control).next(time.monotonic() + START_S)
        except (BrokenPipeError, ConnectionResetError):
            answer = None
        self._control.settimeout(None)
        if answer is None:
            self.end()
            said = _last_words(words)
            raise ValueError(f"the process that reads it first ended with status {self.process.returncode}{said}")
        if "refused" in answer:
            raise ValueError(answer["refused"])

    def ask(self, job: dict[str, Any], place: Place, ends: float) -> dict[str, Any]:
        """The answer, or how the fork that had the job ended. Gone, TimeoutError, or what `place` raises."""
        ours, theirs = socket.socketpair()
        with ours:
            try:
                with theirs, self._sending:
                    socket.send_fds(self._control, [b"j"], [theirs.fileno()])
                ours.settimeout(max(0.001, ends - time.monotonic()))
                ours.sendall(json.dumps(job).encode() + b"\n")
                return self._listen(ours, place, ends)
            except (BrokenPipeError, ConnectionResetError) as error:
                raise Gone(str(error)) from error
            except ValueError:
                return {
                    "refused": f"what it is translated to takes more than {ANSWER_BYTES >> 20} MiB; make it smaller"
                }
            finally:
                _hang_up(ours)

    def _listen(self, ours: socket.socket, place: Place, ends: float) -> dict[str, Any]:
        answers = Answers(ours)
        try:
            answer = answers.next(min(time.monotonic() + QUICK_S, ends))
        except TimeoutError:
            if time.monotonic() >= ends:
                raise
            place.took_long()
            answer = answers.next(ends)
        if answer is None:
            raise Gone("it ended without a word")
        return answer


class Answers:
    """Lines of JSON from the other side of a socket."""

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._waiting = b""

    def next(self, ends: float) -> dict[str, Any] | None:
        """None once the other side has closed. TimeoutError at `ends`, and a later call goes on from there."""
        while b"\n" not in self._waiting:
            self._channel.settimeout(max(0.001, ends - time.monotonic()))
            data = self._channel.recv(1 << 16)
            if not data:
                return None
            self._waiting += data
            if len(self._waiting) > ANSWER_BYTES:
                raise ValueError(f"an answer of more than {ANSWER_BYTES} bytes")
        line, self._waiting = self._waiting.split(b"\n", 1)
        return json.loads(line)


def _not_started(error: Exception) -> EngineStoppedError:
    return EngineStoppedError(f"the process that compiles grammars does not start ({error}); try again later")


def _hang_up(channel: socket.socket) -> None:
    """The child hears it, even if a fork of this process holds the socket too."""
    try:
        channel.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has hung up before


def _end(control: socket.socket, process: subprocess.Popen[bytes], home: HomeProcess) -> None:
    if home.is_here:
        control.close()
        process.kill()
        process.wait()


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
    why = "it nests too deep" if status == -signal.SIGSEGV else f"the process that compiled it ended with {status}"
    raise InvalidRequestError(f"guided_decoding: {params.kind} cannot be followed: {why}; make it smaller")


def _too_much(params: GuidedDecodingParams, most: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"guided_decoding: {params.kind} cannot be followed: it takes more than {most >> 20} MiB of memory; make it "
        "smaller"
    )


def _last_words(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
    said = file.read().decode(errors="replace").strip()
    return f"; its last words: {said}" if said else ""
