"""Hostile values inside one process: to SamplingParams and LLM, and to a model of Triton's Python backend. It is a
process of its own, for one of them may end it.

    python -P in_process.py api|both|llmapi ENGINE [FIRST]

Makes the attacks of parameters.py or tensors.py, from number FIRST on: a line {"begins": NAME} on stdout before each
and a `Report` after it; at the end {"held": ...}, what requests still hold. Beside them go a stream and a thread that
only sleeps: how long those two do not get on is how long nobody in this process would have. A process of its own sleeps
too: how long that one does not get on is what the machine takes from everybody.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hostile.observing import Growth

TICK = 0.005
TRIES = 3
QUIET = 0.7  # seconds without an attack, at the start and before another try
SETTLE = 30.0  # seconds until threads and what requests hold are as before, at most
MEMORY = 6 << 30  # bytes of address space


@dataclass
class Report:
    """Of one try. The longest gaps, in seconds: of sleeper and stream, before and during the attack; and of the machine
    itself during the attack. grown: bytes. left: threads, and what requests hold. wrong: "" if it was answered, or
    refused as it should be."""

    ends: str
    seconds: float
    gaps: dict[str, tuple[float, float]]
    machine: float
    grown: int
    left: dict[str, int] = field(default_factory=dict)
    wrong: str = ""

    def faults(self, longest: float, noise: float, memory: int) -> list[str]:
        found = [self.wrong] if self.wrong else []
        for name, (quiet, gap) in self.gaps.items():
            if gap > (most := longest + noise * (quiet + self.machine)):
                found.append(
                    f"{name} stood still for {gap:.2f} s, at most {most:.2f} may be "
                    f"(quiet {quiet:.2f}, the machine {self.machine:.2f})"
                )
        if self.grown > memory:
            found.append(f"memory grew by {self.grown >> 20} MB, at most {memory >> 20} may be")
        return found + [f"{count} {what} are left" for what, count in self.left.items() if count > 0]


class Pulse:
    """The longest time between two beats."""

    def __init__(self) -> None:
        self._last, self._longest = time.monotonic(), 0.0

    def beat(self, counts: bool = True) -> None:
        """counts: whether the time since the last one was waited through."""
        now = time.monotonic()
        if counts:
            self._longest = max(self._longest, now - self._last)
        self._last = now

    def take(self) -> float:
        """Since the last call; what goes on counts as well."""
        longest, self._longest = max(self._longest, time.monotonic() - self._last), 0.0
        self._last = time.monotonic()
        return longest


class Machine:
    """A process that only sleeps."""

    PROGRAM = f"""
import sys, threading, time
sys.path.insert(0, {str(Path(__file__).resolve().parent.parent)!r})
from hostile.in_process import TICK, Pulse
pulse = Pulse()
def sleep():
    while True:
        time.sleep(TICK)
        pulse.beat()
threading.Thread(target=sleep, daemon=True).start()
for _ in sys.stdin:
    print(pulse.take(), flush=True)
"""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-c", self.PROGRAM]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.take()  # it has begun

    def take(self) -> float:
        """The longest time that it did not get on, in seconds, since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


Attack = Callable[[], str]
"""Made before, so that making it is not measured. Returns what is wrong with how it ended, or ""."""


class Subject(Protocol):
    """What is attacked. attacks: by name, each made at the number of the try."""

    attacks: Mapping[str, Callable[[int], Attack]]

    def stream(self, pulse: Pulse) -> None:
        """One honest stream, with a beat for each event; returns at its end."""

    def held(self) -> dict[str, int]:
        """What requests hold: how many run, wait, and their blocks."""

    def close(self) -> None: ...


class Session:
    def __init__(self, subject: Subject):
        self._subject = subject
        self._machine = Machine()
        self._pulses = {"a sleeping thread": Pulse(), "the stream": Pulse()}
        self._over = threading.Event()
        sleeping, streaming = self._pulses.values()

        def stream() -> None:
            while not self._over.is_set():
                streaming.beat(counts=False)
                subject.stream(streaming)

        def sleep() -> None:
            while True:
                time.sleep(TICK)
                sleeping.beat()

        self._streamer = threading.Thread(target=stream, daemon=True)
        self._streamer.start()
        threading.Thread(target=sleep, daemon=True).start()

        self._calm: dict[str, float] = {}

    def rest(self) -> None:
        """How long they do not get on by themselves."""
        self._take()
        time.sleep(QUIET)
        self._calm = self._take()

    def attack(self, name: str, attack: Attack) -> Report:
        before = self._count()
        self._machine.take()
        self._take()
        with Growth(os.getpid()) as growth:
            begin = time.monotonic()
            wrong = attack()
            seconds = time.monotonic() - begin
        gaps = {what: (self._calm[what], gap) for what, gap in self._take().items()}
        return Report(name, seconds, gaps, self._machine.take(), growth.bytes, self._left(before), wrong)

    def _take(self) -> dict[str, float]:
        return {name: pulse.take() for name, pulse in self._pulses.items()}

    def _count(self) -> dict[str, int]:
        held = self._subject.held()
        return {"threads": len(os.listdir("/proc/self/task")), "requests": held["running"] + held["waiting"]}

    def _left(self, before: dict[str, int]) -> dict[str, int]:
        limit = time.monotonic() + SETTLE
        while True:
            now = self._count()
            # The stream's own request may just have been between two of its own.
            surplus = {"threads": now["threads"] - before["threads"], "requests": now["requests"] - 1}
            if max(surplus.values()) <= 0 or time.monotonic() > limit:
                return surplus
            time.sleep(0.01)

    def end(self) -> dict[str, int]:
        """Once the stream has ended too."""
        self._over.set()
        self._machine.close()
        self._streamer.join(60)
        limit = time.monotonic() + SETTLE
        while any(self._subject.held().values()) and time.monotonic() < limit:
            time.sleep(0.01)
        return self._subject.held()


def run(subject: Subject, first: int, good: Callable[[Report], bool]) -> None:
    session = Session(subject)
    session.rest()
    for name, make in list(subject.attacks.items())[first:]:
        print(json.dumps({"begins": name}), flush=True)
        for number in range(TRIES):
            report = session.attack(name, make(number))
            if good(report) or report.wrong:
                break
            session.rest()
        print(json.dumps(dataclasses.asdict(report)), flush=True)
    print(json.dumps({"held": session.end()}), flush=True)
    subject.close()


def main() -> None:
    kind, engine, *first = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from hostile.arena import LONGEST_GAP, MOST_MEMORY, NOISE

    if kind == "api":
        from hostile.parameters import Api as Attacked
    else:
        from hostile.tensors import Model as Attacked  # type: ignore[assignment]
    subject: Subject = Attacked(Path(engine), kind)
    run(subject, int(first[0]) if first else 0, lambda report: not report.faults(LONGEST_GAP, NOISE, MOST_MEMORY))


if __name__ == "__main__":
    main()
