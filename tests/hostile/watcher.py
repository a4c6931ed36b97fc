"""Who is served beside an attack: honest clients in a process of its own, so that nothing that the attacker does in
its own process can hold them up.

    python -P watcher.py HOST PORT [KEY]

victim: streams greedy completions, one after the other; its gaps are the times between two events of one stream.
start: from asking for such a stream to its first event. health: asks /health on a new connection, 50 times a second.
newcomer: asks for one token, ten times a second. The gaps of these three go from the first time they ask to a good
answer: a refusal is asked again. machine: how long a thread here slept that asked for 10 ms: what the machine itself
takes from everybody.

Prints "watching" once each of them was answered. Then, for each line `BEGIN END` on stdin (seconds of the system's
monotonic clock), one line of JSON: the longest gap of each that overlaps that time, how many answers fell into it, and
the refusals met since the line before. What has not ended counts up to now. After a line "rest" they ask for nothing
more, and the victim leaves its stream; after a line "work" they go on, and "watching" comes once each was answered.
"""

from __future__ import annotations

import collections
import http.client
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

KEPT = 400_000  # spans; an hour of a victim
PAUSE = {"health": 0.02, "newcomer": 0.1}
TICK = 0.01
RETRY = 0.02
LONGEST = 900.0
VICTIM = {"prompt": "import os", "max_tokens": 1900, "temperature": 0, "ignore_eos": True, "stream": True}
NEWCOMER = {"prompt": "def read(self):", "max_tokens": 1, "temperature": 0, "ignore_eos": True}
WORKING, NEWCOMING = threading.Event(), threading.Event()
"""Whether the honest clients ask for anything; whether the newcomer does."""


class Spans:
    """Times without an answer. One thread writes, another reads."""

    def __init__(self) -> None:
        self._ended: collections.deque[tuple[float, float]] = collections.deque(maxlen=KEPT)
        self._open: float | None = None
        self.refusals: collections.Counter[str] = collections.Counter()
        self.answered = threading.Event()

    def begin(self) -> None:
        """Nothing is waited for before this."""
        self._open = time.monotonic()

    def answer(self, goes_on: bool) -> None:
        """goes_on: the next one is waited for from now on."""
        now = time.monotonic()
        if self._open is not None:
            self._ended.append((self._open, now))
        self._open = now if goes_on else None
        self.answered.set()

    def report(self, begin: float, end: float) -> dict[str, object]:
        late = itertools.takewhile(lambda span: span[1] > begin, reversed(list(self._ended)))
        spans = [(a, b) for a, b in late if a < end]
        opened = self._open
        if opened is not None and opened < end:
            spans.append((opened, time.monotonic()))
        refusals, self.refusals = self.refusals, collections.Counter()
        longest = max((b - a for a, b in spans), default=0.0)
        return {"gap": longest, "answers": len(spans), "refusals": dict(refusals)}


class Client:
    def __init__(self, host: str, port: int, key: str | None):
        self._place = (host, port)
        self._headers = {"content-type": "application/json"}
        if key is not None:
            self._headers["authorization"] = f"Bearer {key}"

    def lines(self, method: str, path: str, body: dict[str, object] | None = None) -> Iterator[bytes]:
        """Of the answer; raises what is not 200 as an HTTPException with the status."""
        connection = http.client.HTTPConnection(*self._place, timeout=LONGEST)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise http.client.HTTPException(str(response.status))
            yield from iter(response.readline, b"")
        finally:
            connection.close()


def stream(client: Client, events: Spans, starts: Spans) -> None:
    while WORKING.wait():
        starts.begin()
        first = True
        while first:
            try:
                with closing(client.lines("POST", "/v1/completions", VICTIM)) as lines:
                    for line in lines:
                        if line.startswith(b"data: {"):
                            if first:
                                starts.answer(goes_on=False)
                                events.begin()
                                first = False
                            else:
                                events.answer(goes_on=WORKING.is_set())
                        if not first and not WORKING.is_set():
                            break
            except (OSError, http.client.HTTPException) as error:
                count = events if not first else starts
                count.refusals[_name(error)] += 1
                time.sleep(RETRY)
        events._open = None


def ask(
    client: Client,
    spans: Spans,
    pause: float,
    wanted: threading.Event,
    method: str,
    path: str,
    body: dict[str, object] | None,
) -> None:
    while wanted.wait():
        spans.begin()
        served = False
        while not served:
            try:
                for _ in client.lines(method, path, body):
                    pass
                served = True
            except (OSError, http.client.HTTPException) as error:
                spans.refusals[_name(error)] += 1
                time.sleep(RETRY)
        spans.answer(goes_on=False)
        time.sleep(pause)


def tick(machine: Spans) -> None:
    while WORKING.wait():
        time.sleep(TICK)
        machine.begin()
        time.sleep(TICK)
        machine.answer(goes_on=False)


def _name(error: Exception) -> str:
    text = str(error)
    return text if text.isdigit() else type(error).__name__


def main() -> None:
    host, port, *key = sys.argv[1:]
    client = Client(host, int(port), key[0] if key else None)
    probes = {name: Spans() for name in ("victim", "start", "health", "newcomer", "machine")}
    work = [
        (stream, (client, probes["victim"], probes["start"])),
        (ask, (client, probes["health"], PAUSE["health"], WORKING, "GET", "/health", None)),
        (tick, (probes["machine"],)),
        (ask, (client, probes["newcomer"], PAUSE["newcomer"], NEWCOMING, "POST", "/v1/completions", NEWCOMER)),
    ]
    for function, arguments in work:
        threading.Thread(target=function, args=arguments, daemon=True).start()  # type: ignore[arg-type]
    begin_work(probes, newcomers=True)
    for line in map(str.strip, sys.stdin):
        if line == "rest":
            WORKING.clear()
            NEWCOMING.clear()
        elif line in ("work", "work with newcomers"):
            begin_work(probes, newcomers=line != "work")
        else:
            begin, end = map(float, line.split())
            print(json.dumps({name: spans.report(begin, end) for name, spans in probes.items()}), flush=True)


def begin_work(probes: dict[str, Spans], newcomers: bool) -> None:
    """Returns once each that is wanted was answered."""
    wanted = [spans for name, spans in probes.items() if newcomers or name != "newcomer"]
    for spans in wanted:
        spans.answered.clear()
    WORKING.set()
    if newcomers:
        NEWCOMING.set()
    for spans in wanted:
        spans.answered.wait()
    print("watching", flush=True)


if __name__ == "__main__":
    main()
