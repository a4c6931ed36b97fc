"""One life of a server: a process of `tensorwright serve`, its log, its metrics, and what the system says of it."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

STARTS = 240.0
"""Seconds in which a server must listen."""
ENDS_WITHIN = 270.0
"""Seconds in which a server must have ended after SIGTERM, requests under way included."""


PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """A server that is held still cannot notice that the soak was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


REPLACED = "; another one takes its place"
WATCHDOG = "tensorwright.runtime.requests.watchdog"


@dataclass(frozen=True)
class Held:
    """What a process holds. memory: bytes of anonymous memory; mapped weights come and go as the kernel likes."""

    memory: int
    files: int
    threads: int


class Log:
    """Reads the lines of a server's log as they come, and keeps what is counted. faults: lines that report what must
    not happen. stalls: reports of the watchdog. replaced: engines in whose place another one was put."""

    def __init__(self, stream: Any, copy: Path):
        self.statuses: dict[str, list[int | None]] = {}
        self.reasons: Counter[str] = Counter()
        self.faults: list[str] = []
        self.messages: Counter[str] = Counter()
        self.stalls = self.replaced = 0
        self._thread = threading.Thread(target=self._read, args=(stream, copy), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits until the last line has been read."""
        self._thread.join(ENDS_WITHIN)

    def _read(self, stream: Any, copy: Path) -> None:
        with copy.open("w", encoding="utf-8") as out:
            for text in stream:
                out.write(text)
                out.flush()
                try:
                    line = json.loads(text)
                except ValueError:
                    self.faults.append(text.strip()[:500])
                    continue
                self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        self.messages[line["message"]] += 1
        if line["message"] == "request":
            self.statuses.setdefault(line["request_id"], []).append(line["status"])
            self.reasons.update(str(reason) for reason in line.get("finish_reasons", ()))
        elif line["message"].endswith(REPLACED):
            self.replaced += 1
        elif line["logger"] == WATCHDOG and "exception" not in line:
            self.stalls += 1
        elif line["level"] in ("error", "critical") or "exception" in line:
            text = json.dumps(line)
            self.faults.append(text if len(text) < 3000 else f"{text[:1000]} ... {text[-2000:]}")


class Life:
    """A running server. It is started at once; `wait` waits until it listens."""

    def __init__(self, engine: Path, port: int, folder: Path, name: str, options: list[str], plant: Path | None = None):
        self.name, self.port = name, port
        start = f"import runpy; runpy.run_path({str(plant)!r}); " if plant is not None else ""
        start += "from tensorwright.runtime.commands.cli import main; main()"
        command = [sys.executable, "-P", "-c", start, "serve", f"pico={engine}", "--port", str(port), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
            preexec_fn=_end_with_parent,
        )  # fmt: skip
        self.log = Log(self.process.stderr, folder / f"{name}.log")

    def wait(self) -> None:
        """Waits until the server answers. Raises RuntimeError if it ends before."""
        begun = time.monotonic()
        while time.monotonic() - begun < STARTS:
            if self.process.poll() is not None:
                self.log.join()
                raise RuntimeError(f"the server ended with code {self.process.returncode}: {self.log.faults[-3:]}")
            try:
                if self.get("/ready").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise RuntimeError(f"the server must listen within {STARTS:.0f} s, it does not")

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30, trust_env=False)

    def metrics(self) -> dict[str, float]:
        """Returns the value of each sample, as name{label=value,...} without the model."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.get("/metrics").raise_for_status().text):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "model")
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def held(self) -> Held:
        root = Path(f"/proc/{self.process.pid}")
        status = root.joinpath("status").read_text()
        memory = int(status.split("RssAnon:")[1].split()[0]) * 1024
        return Held(memory, len(list(root.joinpath("fd").iterdir())), int(status.split("Threads:")[1].split()[0]))

    def stop_for(self, seconds: float) -> None:
        """Holds the whole process still, as a machine that swaps or a suspended guest does."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Meanwhile no file can grow beyond a page: a write fails as on a full disk. The log is a pipe and goes on."""
        before = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            yield
        finally:
            if self.process.poll() is None:
                resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, before)

    def end(self) -> int | None:
        """Ends the server in order, and returns its exit code; None if it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code: int | None = self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.log.join()
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
