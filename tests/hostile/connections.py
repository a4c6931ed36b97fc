"""Attacks that are made of connections rather than of bodies."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable

from hostile.clients import Attacker, Outcome, Target, together

CHUNKS_AT_ONCE = 4096
RETRY = 0.02
HIGHEST = 2**31 - 1
MOST_LINES = 200  # of log; the probes beside an attack write some 60 a second unless they are quiet


def _hold(count: int, hello: bytes, seconds: float) -> Attacker:
    """Holds so many connections; one that is refused is tried again until the time is over."""

    def attack(target: Target) -> Outcome:
        held: list[socket.socket] = []
        answers: set[str] = set()
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                if len(held) < count:
                    answers.add(_open(target, hello, held))
                time.sleep(RETRY if len(held) == count or "refused" in answers else 0)
        finally:
            for opened in held:
                opened.close()
        return Outcome(sorted(answers), f"{len(held)} connections were held")

    return attack


def _open(target: Target, hello: bytes, held: list[socket.socket]) -> str:
    """The status, where one was asked for; a connection that was taken is one more of those held."""
    try:
        opened = target.connect(2)
        if not hello:
            held.append(opened)
            return "200"
        opened.sendall(hello)
        status = opened.recv(4096)[9:12].decode()
    except OSError:
        return "refused"
    if status == "200":
        held.append(opened)
        return status
    opened.close()
    return status or "refused"


def stay(count: int) -> Callable[[int], Attacker]:
    """Asks /health once on each, which needs no key, and stays so many seconds."""
    return lambda seconds: _hold(count, b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", seconds)


def say_nothing(count: int) -> Callable[[int], Attacker]:
    """For so many seconds, which should be fewer than the server gives headers."""
    return lambda seconds: _hold(count, b"", seconds)


def chunks(size: int, connections: int = 8) -> Attacker:
    """A body of so many bytes, each in a chunk of its own, as fast as the server takes them; needs no key."""
    head = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    piece = b"1\r\na\r\n" * CHUNKS_AT_ONCE

    def attack(target: Target) -> Outcome:
        outcome = Outcome()

        def one() -> None:
            with contextlib.closing(target.connect(60)) as opened:
                try:
                    opened.sendall(head)
                    for _ in range(max(1, size // CHUNKS_AT_ONCE)):
                        opened.sendall(piece)
                    opened.sendall(b"0\r\n\r\n")
                except OSError:
                    pass  # it was answered before its end
                with contextlib.suppress(OSError):
                    outcome.answers.append(opened.recv(4096)[9:12].decode() or "refused")

        together([one] * connections)
        return outcome

    return attack


def hold_bodies(count: int, size: int = 3_900_000, seconds: float = 1.0) -> Attacker:
    """So many bodies at once that all lack their last byte, as long as the server waits for it, or so long."""

    def attack(target: Target) -> Outcome:
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in target.headers().items())
        start = f"{head}content-length: {size}\r\n\r\n".encode()
        rest = b" " * (size - 1)
        outcome = Outcome()

        def one() -> None:
            with contextlib.closing(target.connect(20)) as opened:
                with contextlib.suppress(OSError):  # it was answered before its end
                    opened.sendall(start)
                    opened.sendall(rest)
                opened.settimeout(seconds)
                with contextlib.suppress(OSError):
                    outcome.answers.append(opened.recv(4096)[9:12].decode() or "refused")

        together([one] * count)
        outcome.answers = sorted(set(outcome.answers))
        return outcome

    return attack


def only_one(size: int) -> Attacker:
    """One client where one may be."""

    def attack(target: Target) -> Outcome:
        time.sleep(0.3)
        status, text = target.ask("GET", "/health")
        wrong = "" if status == "200" else f"the one client of --max-connections 1 is answered {status}"
        return Outcome([status], text, wrong)

    return attack


def high_priority(seconds: int, clients: int = 8) -> Attacker:
    """Each asks again as soon as it was answered."""
    body = {
        "model": "pico", "prompt": "class", "max_tokens": 100, "ignore_eos": True, "temperature": 0,
        "priority": HIGHEST,
    }  # fmt: skip
    text = json.dumps(body).encode()

    def attack(target: Target) -> Outcome:
        outcome, end = Outcome(), time.monotonic() + seconds
        lock = threading.Lock()

        def one() -> None:
            while time.monotonic() < end:
                status, _ = target.post("/v1/completions", text)
                with lock:
                    outcome.answers.append(status)
                if status != "200":
                    time.sleep(0.2)

        together([one] * clients)
        outcome.answers = sorted(set(outcome.answers))
        return outcome

    return attack


def flood(outcome: Outcome, lines: list[str]) -> str:
    """What is wrong with the log of a server that ran out of descriptors."""
    return f"{len(lines)} lines of log" if len(lines) > MOST_LINES else ""
