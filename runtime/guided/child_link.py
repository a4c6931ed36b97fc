"""Starts the child process of compile_child.py, sends it jobs, and ends it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from array import array
from dataclasses import dataclass
from typing import IO, Any

from tensorwright.runtime.base.forks import HomeProcess
from tensorwright.runtime.base.other_python import environment, interpreter
from tensorwright.runtime.guided.compile_queue import QUICK_S, Place

ANSWER_BYTES = 4 << 20  # the most bytes of one answer of the child
START_S = 120.0  # the seconds that the child has to read the vocabulary
STARTING_THREAD = "tensorwright-grammar-process"
MODULE = "tensorwright.runtime.guided.compile_child"
LAST_WORDS = 2000  # the number of bytes at the end of a child's stderr that an error quotes


@dataclass(frozen=True)
class SpelledVocabulary:
    """A vocabulary in the form in which the child reads it.

    lengths: the length of each token in bytes, as uint32. spelled: the bytes of all tokens. ends: the tokens that end a
    text.
    """

    lengths: bytes  # uint32
    spelled: bytes
    ends: tuple[int, ...]

    def header(self) -> dict[str, Any]:
        tokens = len(self.lengths) // array("I").itemsize
        return {"parent": os.getpid(), "ends": self.ends, "tokens": tokens, "bytes": len(self.spelled)}


class Gone(Exception):
    """The child has ended, through no fault of a grammar."""


class Child:
    """A child process. It runs from the construction of this object until end(), or until the object is collected.

    The constructor raises ValueError, in the library's words, for a vocabulary that the library cannot use, and OSError
    if the system does not start the process or if the process does not answer within START_S.
    """

    def __init__(self, vocabulary: SpelledVocabulary):
        self._control, theirs = socket.socketpair()
        self._sending = threading.Lock()
        with tempfile.TemporaryFile() as words:
            with theirs:  # our copy of the child's end must be closed first, so that we notice when the child ends
                self.process = subprocess.Popen(
                    [interpreter(), "-P", "-m", MODULE],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    env={**environment(), "MALLOC_ARENA_MAX": "1"},  # arenas reserve address space, which is limited
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
        """Sends a job and returns the answer, which may say how the fork that had the job ended.

        Raises Gone, TimeoutError at `ends`, in seconds of time.monotonic(), and what `place` raises.
        """
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


class StartingChild:
    """A child that starts in a thread of its own.

    error: the error of the start, without its traceback, because the frames would keep their objects alive.
    """

    def __init__(self, vocabulary: SpelledVocabulary):
        """Begins to start the child. Raises RuntimeError if the system has no more threads."""
        self.child: Child | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._start, args=(vocabulary,), name=STARTING_THREAD, daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None) -> bool:
        """Whether the start has succeeded or failed within this time. seconds: None waits without a limit."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self, vocabulary: SpelledVocabulary) -> None:
        try:
            self.child = Child(vocabulary)
        except BaseException as error:
            self.error = error.with_traceback(None)


class Answers:
    """Reads lines of JSON from a socket."""

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._waiting = b""

    def next(self, ends: float) -> dict[str, Any] | None:
        """Returns the next line, None if the other side has closed the socket. Raises TimeoutError at `ends`; a later
        call can then go on."""
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


def _hang_up(channel: socket.socket) -> None:
    """Closes the connection so that the child notices, even if a fork of this process holds the socket too."""
    try:
        channel.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side has closed the connection already


def _end(control: socket.socket, process: subprocess.Popen[bytes], home: HomeProcess) -> None:
    if home.is_here:
        control.close()
        process.kill()
        process.wait()


def _last_words(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
    said = file.read().decode(errors="replace").strip()
    return f"; its last words: {said}" if said else ""
