"""The attacker's side of a connection. It comes from an address of its own, for limits may be per address."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

ATTACKER = "127.0.0.2"
LONGEST = 600.0  # seconds that an attacker waits for an answer


@dataclass(frozen=True)
class Target:
    """keys: of two clients; the attacker's is the first. None where the server asks for none."""

    host: str
    port: int
    keys: tuple[str, str] | None = None

    def headers(self, client: int = 0) -> dict[str, str]:
        return {} if self.keys is None else {"authorization": f"Bearer {self.keys[client]}"}

    def connect(self, timeout: float = LONGEST) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout, (ATTACKER, 0))

    def ask(
        self, method: str, path: str, body: bytes | None = None, client: int = 0, **headers: str
    ) -> tuple[str, str]:
        """(status, text), or (name of the exception, "") where the server hangs up."""
        connection = http.client.HTTPConnection(self.host, self.port, LONGEST, (ATTACKER, 0))
        sent = {"content-type": "application/json", **self.headers(client), **headers}
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return str(response.status), response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__, ""
        finally:
            connection.close()

    def post(self, path: str, body: bytes, client: int = 0) -> tuple[str, str]:
        return self.ask("POST", path, body, client)

    def complete(self, client: int = 0, **fields: Any) -> dict[str, Any]:
        """A completion that must be answered."""
        body = {"model": "pico", "temperature": 0, "ignore_eos": True, **fields}
        status, text = self.post("/v1/completions", json.dumps(body).encode(), client)
        if status != "200":
            raise RuntimeError(f"a plain completion was answered {status}: {text[:300]}")
        answer: dict[str, Any] = json.loads(text)
        return answer


@dataclass
class Outcome:
    """What an attack met. answers: statuses, or exceptions. finding: what is wrong with them, besides the time; a row
    of the review that is no matter of time has one until it is mended."""

    answers: list[str] = field(default_factory=list)
    text: str = ""
    finding: str = ""
    seconds: float = 0.0


Attacker = Callable[[Target], Outcome]


def posts(path: str, bodies: Iterable[bytes]) -> Attacker:
    """All at once, each on a connection of its own."""
    ready = list(bodies)

    def attack(target: Target) -> Outcome:
        found: list[tuple[str, str]] = [("nothing", "")] * len(ready)

        def send(index: int) -> None:
            found[index] = target.post(path, ready[index])

        together([lambda index=index: send(index) for index in range(len(ready))])  # type: ignore[misc]
        return Outcome([status for status, _ in found], found[0][1][:300])

    return attack


def together(tasks: list[Callable[[], None]]) -> None:
    if len(tasks) == 1:
        tasks[0]()
        return
    threads = [threading.Thread(target=task, daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed(attack: Attacker, target: Target, limit: float) -> Outcome | None:
    """None: it was not over after `limit` seconds; whoever asks then ends the server, and so the attack's thread."""
    found: list[Outcome] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(attack(target))
        except Exception as error:
            failed.append(error)

    begun = time.monotonic()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit)
    if failed:
        words = str(failed[0])[:300]
        found.append(Outcome([type(failed[0]).__name__], words, f"the attack stopped: {words}"))
    if found:
        found[0].seconds = time.monotonic() - begun
        return found[0]
    return None
