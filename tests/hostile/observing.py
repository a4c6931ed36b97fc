"""What an attack does to others and to the server's process: the watcher's reports and /proc's figures."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostile.clients import Target

LOOK = 0.1  # seconds between two looks at a process's memory


class Watch:
    """The watcher's process; see watcher.py. Its honest clients are at work from the start."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process
        self._hear_that_it_watches()

    def report(self, begin: float, end: float) -> dict[str, dict[str, Any]]:
        """Of each probe, over a time of time.monotonic()."""
        self._say(f"{begin!r} {end!r}")
        found: dict[str, dict[str, Any]] = json.loads(self._hear())
        return found

    @contextlib.contextmanager
    def at_work(self, newcomers: bool = True) -> Iterator[None]:
        """Has the honest clients at work, and lets them rest afterwards: a server that streams to them as fast as it
        can takes much of the machine. newcomers: whether there are any."""
        self._say("work with newcomers" if newcomers else "work")
        self._hear_that_it_watches()
        try:
            yield
        finally:
            if self._process.poll() is None:
                self.rest()

    def rest(self) -> None:
        """The honest clients ask for nothing until they are at work again."""
        self._say("rest")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _hear_that_it_watches(self) -> None:
        if self._hear() != "watching\n":
            raise RuntimeError("the watcher ended before it watched")

    def close(self) -> None:
        """The honest clients leave."""
        self._process.kill()
        self._process.wait()

    def quiet(self, seconds: float) -> dict[str, dict[str, Any]]:
        """Over so long from now, in which nobody should attack."""
        begin = time.monotonic()
        time.sleep(seconds)
        return self.report(begin, time.monotonic())


@contextlib.contextmanager
def watch(target: Target) -> Iterator[Watch]:
    """Begins when each probe was answered once. The honest clients have the second key."""
    key = [] if target.keys is None else [target.keys[1]]
    place = [target.host, str(target.port)]
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("watcher.py")), *place, *key],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield Watch(process)
    finally:
        process.kill()
        process.wait()
        for end in (process.stdin, process.stdout):
            if end is not None:
                end.close()


@dataclass(frozen=True)
class Figures:
    """Of a process. Memory in bytes; threads, sockets and other descriptors as numbers. All 0 of one that ended."""

    memory: int = 0
    peak: int = 0
    threads: int = 0
    descriptors: int = 0
    sockets: int = 0


def figures(pid: int) -> Figures:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        opened = _opened(pid)
    except OSError:
        return Figures()
    found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    if "VmHWM" not in found:
        return Figures()
    memory, peak = (int(found[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    sockets = sum(name.startswith("socket:") for name in opened)
    return Figures(memory, peak, int(found["Threads"]), len(opened) - sockets, sockets)


def _opened(pid: int) -> list[str]:
    """What its descriptors lead to."""
    names = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed in between
            names.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return names


class Growth:
    """How far a process's memory grows beyond what it has now. It goes on looking: the process may not live to tell."""

    def __init__(self, pid: int):
        self.before = figures(pid)
        self.bytes = 0
        self._pid = pid
        self._over = threading.Event()
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the high-water mark begins anew
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Growth:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        last = False
        while not last:
            last = self._over.wait(LOOK)
            self.bytes = max(self.bytes, figures(self._pid).peak - self.before.memory)
