"""The child process of compile_child.py as the serving process has it: started, asked, ended."""

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
from tensorwright.runtime.guided.compile_queue import QUICK_S, Place
from tensorwright.runtime.guided.other_python import environment, interpreter

ANSWER_BYTES = 4 << 20  # of the child
START_S = 120.0  # to read the vocabulary
STARTING_THREAD = "tensorwright-grammar-process"
MODULE = "tensorwright.runtime.guided.compile_child"
LAST_WORDS = 2000  # characters of a child's stderr that an error quotes


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


class Child:
    """Runs from its making on, until end() or until nobody holds it. ValueError, in the library's words, for a
    vocabulary that it cannot use; OSError if the system does not let it start, or if it says nothing for START_S."""

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


class StartingChild:
    """A child that is started in a thread of its own. error: why it could not be, without the frames that it came
    through: what they hold would live as long."""

    def __init__(self, vocabulary: SpelledVocabulary):
        """RuntimeError if the system has no more threads."""
        self.child: Child | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._start, args=(vocabulary,), name=STARTING_THREAD, daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None) -> bool:
        """Whether it has started, or could not be, within that time; None: however long that takes."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self, vocabulary: SpelledVocabulary) -> None:
        try:
            self.child = Child(vocabulary)
        except BaseException as error:
            self.error = error.with_traceback(None)


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


def _last_words(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS))
    said = file.read().decode(errors="replace").strip()
    return f"; its last words: {said}" if said else ""
