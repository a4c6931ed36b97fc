"""Compiles grammars in a child process, before the serving process compiles them itself.

    python -m tensorwright.runtime.guided.compile_child

compile_process.py starts it. It reads a vocabulary once and forks for each grammar. So a grammar that never ends, takes
too much memory or overruns the stack ends only a fork, and the next grammar does not wait for the vocabulary. The
process has one thread. Jobs and answers are lines of JSON; see serve().
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
"""The stack of the thread that compiles. The serving process has a larger one for a grammar that was compiled here."""
PARENT_MS = 1000  # the milliseconds between two checks whether the parent still runs
NICE = 10  # lowers the priority, because the computations of running requests come first
PR_SET_PDEATHSIG = 1


class _MallocState(ctypes.Structure):
    """The C structure mallinfo2."""

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
    """Reads the vocabulary. If the library cannot use it, sends {"refused": words} and returns None.

    header: {"parent": process, "ends": ids, "tokens": count, "bytes": count}. stream: the lengths of the tokens as
    uint32, then their bytes.
    """
    lengths = array("I")
    lengths.frombytes(stream.read(header["tokens"] * lengths.itemsize))
    spelled = stream.read(header["bytes"])
    try:
        return LibraryTokens(lengths, spelled, header["ends"], bytewise(lengths, spelled))
    except ValueError as error:
        _send(control, {"refused": str(error)})
        return None


def bytewise(lengths: array[int], spelled: bytes) -> Any:
    """Returns a function that spells a text in tokens of one byte each.

    It replaces the model's own tokenizer. The library uses a tokenizer only to spell a text that is the only possible
    continuation, so it does not change which texts a grammar admits.
    """
    known, start = {}, 0
    for token, length in enumerate(lengths):
        if length == 1:
            known[spelled[start]] = token
        start += length
    return lambda text: [known[byte] for byte in text.encode() if byte in known]


def silence() -> None:
    """Redirects stderr to /dev/null. The library writes panics there, with which clients could fill the server's
    log."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def serve(control: socket.socket, tokens: LibraryTokens, parent: int) -> None:
    """Runs jobs until the parent ends.

    Each byte on `control` comes with a socket that carries one job. The answers on that socket are {"text": ...,
    "bytes": ..., "seconds": of a processor} or {"refused": words}, and then {"ended": exit status}. The parent ends a
    job by closing its socket.
    """
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
    """The forks that run. Each has two descriptors that hang up: the pipe that the fork holds open hangs up when the
    fork ends, and the socket of its job when the parent no longer waits."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, int, socket.socket]] = {}  # descriptor -> (process, pipe, socket)

    def start(self, job: socket.socket, tokens: LibraryTokens, poll: select.poll) -> None:
        alive, held = os.pipe()
        home = os.getpid()
        process = os.fork()
        if process == 0:
            run(job, tokens, home)
        os.close(held)
        for descriptor in (alive, job.fileno()):
            self._running[descriptor] = (process, alive, job)
            poll.register(descriptor, 0)  # poll reports hangups without any flag

    def end(self, descriptor: int, poll: select.poll) -> None:
        """Cleans up after a fork that has ended, or for whose job nobody waits any more."""
        if descriptor not in self._running:
            return  # the fork's other descriptor hung up first
        process, alive, job = self._running[descriptor]
        for each in (alive, job.fileno()):
            poll.unregister(each)
            del self._running[each]
        os.kill(process, signal.SIGKILL)  # nobody has waited for the process yet, so no other process has its number
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.close(alive)
        with job:
            try:
                _send(job, {"ended": status})
            except OSError:
                return  # the parent does not wait for this job


def run(job: socket.socket, tokens: LibraryTokens, home: int) -> None:
    """Runs a job in a fork, and ends the fork. home: the process that forked."""
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
        os.abort()  # the library also aborts when it gets no memory


def compile_one(tokens: LibraryTokens, params: GuidedDecodingParams, limits: dict[str, int]) -> dict[str, Any]:
    text = translate(tokens, params, limits)
    before, begun = held_bytes(), time.thread_time()
    matcher = compiled(tokens, text, name_of(params), limits)
    seconds, size = time.thread_time() - begun, held_bytes() - before
    matcher.copy()  # each completion needs a copy, so a copy must succeed too
    return {"text": text, "bytes": max(0, size), "seconds": seconds}


def limit_memory(most: int) -> None:
    """Limits this process's memory. most: the bytes that it may map beyond those that are mapped now."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + most, mapped + most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def held_bytes() -> int:
    """Returns the bytes that are allocated and not freed. If the C library does not tell, returns the resident
    bytes."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal, but the parent ends this process
    main()
