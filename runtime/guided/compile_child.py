"""A process that compiles grammars before the serving process does, run by compile_process.py:

    python -m tensorwright.runtime.guided.compile_child

It reads a vocabulary once and forks for each grammar, so one that never ends, takes too much memory or overruns the
stack ends a fork of it and nothing else, and the next one does not wait for the vocabulary. It has one thread. What
comes and goes are lines of JSON; see serve().
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import threading
import time
from array import array
from typing import IO, Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided.library import LibraryTokens
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.translation import compiled, name_of, translate

STACK_BYTES = 4 << 20
"""Of the thread that compiles. The serving process compiles what survived here on a larger one."""
PARENT_MS = 1000  # how often it looks whether its parent is still there
NICE = 10  # what is computed for requests that run goes before
PR_SET_PDEATHSIG = 1


class _MallocState(ctypes.Structure):
    """struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def main() -> None:
    control = socket.socket(fileno=0)
    stream = control.makefile("rb")
    header = json.loads(stream.readline())
    tokens = read_vocabulary(header, stream, control)
    if tokens is not None:
        silence()
        _send(control, {"ready": True})
        serve(control, tokens, header["parent"])


def read_vocabulary(header: dict[str, Any], stream: IO[bytes], control: socket.socket) -> LibraryTokens | None:
    """header: {"parent": process, "ends": ids, "tokens": count, "bytes": count}. stream: the lengths as uint32, the
    bytes. None, and an answer {"refused": words}, if the library cannot use them."""
    lengths = array("I")
    lengths.frombytes(stream.read(header["tokens"] * lengths.itemsize))
    spelled = stream.read(header["bytes"])
    try:
        return LibraryTokens(lengths, spelled, header["ends"], bytewise(lengths, spelled))
    except ValueError as error:
        _send(control, {"refused": str(error)})
        return None


def bytewise(lengths: array[int], spelled: bytes) -> Any:
    """A text in tokens of one byte. It stands in for the model's own tokenizer, which says how to spell what has only
    one continuation, not what is admitted."""
    known, start = {}, 0
    for token, length in enumerate(lengths):
        if length == 1:
            known[spelled[start]] = token
        start += length
    return lambda text: [known[byte] for byte in text.encode() if byte in known]


def silence() -> None:
    """The library writes panics to stderr, and strangers would write to the server's log."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def serve(control: socket.socket, tokens: LibraryTokens, parent: int) -> None:
    """Each byte that comes brings a socket with one job, answered there by {"text": ..., "bytes": ..., "seconds": of a
    processor} or {"refused": words}, and then {"ended": exit status}. To close that socket ends the job. Returns when
    the parent is gone."""
    jobs, poll = Jobs(), select.poll()
    poll.register(control, select.POLLIN)
    while os.getppid() == parent:
        for descriptor, _ in poll.poll(PARENT_MS):
            if descriptor != control.fileno():
                jobs.end(descriptor, poll)
                continue
            data, passed, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                return
            jobs.start(socket.socket(fileno=passed[0]), tokens, poll)


class Jobs:
    """The forks that run, by what tells of their end: the pipe that each holds open, or the socket of its job."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, int, socket.socket]] = {}  # by descriptor: process, pipe, socket

    def start(self, job: socket.socket, tokens: LibraryTokens, poll: select.poll) -> None:
        alive, held = os.pipe()
        home = os.getpid()
        process = os.fork()
        if process == 0:
            run(job, tokens, home)
        os.close(held)
        for descriptor in (alive, job.fileno()):
            self._running[descriptor] = (process, alive, job)
            poll.register(descriptor, 0)  # hangups are always told

    def end(self, descriptor: int, poll: select.poll) -> None:
        """Of a fork that has ended, or whose job nobody waits for any more."""
        if descriptor not in self._running:
            return  # the other of the two came first
        process, alive, job = self._running[descriptor]
        for each in (alive, job.fileno()):
            poll.unregister(each)
            del self._running[each]
        os.kill(process, signal.SIGKILL)  # not yet waited for, so the number is its own
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.close(alive)
        with job:
            try:
                _send(job, {"ended": status})
            except OSError:
                return  # nobody waits


def run(job: socket.socket, tokens: LibraryTokens, home: int) -> None:
    """In a fork, which it ends. home: the process that it is a fork of."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.nice(NICE)
        if os.getppid() == home:
            threading.stack_size(STACK_BYTES)
            thread = threading.Thread(target=answer, args=(job, tokens))
            thread.start()
            thread.join()
    finally:
        os._exit(0)


def answer(job: socket.socket, tokens: LibraryTokens) -> None:
    asked = json.loads(job.makefile("rb").readline())
    limit_memory(asked["memory"])
    try:
        _send(job, compile_one(tokens, GuidedDecodingParams(**asked["params"]), asked["limits"]))
    except InvalidRequestError as error:
        _send(job, {"refused": str(error)})
    except MemoryError:
        os.abort()  # as the library does when it gets none


def compile_one(tokens: LibraryTokens, params: GuidedDecodingParams, limits: dict[str, int]) -> dict[str, Any]:
    text = translate(tokens, params, limits)
    before, begun = held_bytes(), time.thread_time()
    matcher = compiled(tokens, text, name_of(params), limits)
    seconds, size = time.thread_time() - begun, held_bytes() - before
    matcher.copy()  # as each completion has one
    return {"text": text, "bytes": max(0, size), "seconds": seconds}


def limit_memory(most: int) -> None:
    """Bytes beyond what is mapped now."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + most, mapped + most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def held_bytes() -> int:
    """What was allocated and not freed; of libraries that do not tell, what is resident."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallinfo2"):
        library.mallinfo2.restype = _MallocState
        state = library.mallinfo2()
        return state.uordblks + state.hblkhd
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent ends this one
    main()
