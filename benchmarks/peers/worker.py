"""Starts a worker, asks it for jobs, and keeps it stopped while others are measured."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any


class PeerError(Exception):
    """A peer cannot be set up or has failed; the run goes on without it and says why."""


class Worker:
    """A worker process of one peer in one form. `ready` is its message after loading."""

    def __init__(self, command: list[str], log: Path, timeout: float, environment: dict[str, str] | None = None):
        self.timeout, self.log = timeout, log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | (environment or {}),
                start_new_session=True,  # otherwise a stopped worker may hang up the tool after its shell ended
            )
        assert self.process.stdout is not None
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()
        try:
            self.ready = self._read()
        except PeerError:
            self.close()
            raise

    def _listen(self, answers: IO[str]) -> None:
        for line in answers:
            self.lines.put(line)
        self.lines.put("")  # marks the end

    def _read(self) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=self.timeout)
        except queue.Empty:
            raise PeerError(f"no answer within {self.timeout:.0f} s") from None
        if not line:
            raise PeerError(f"its process ended with code {self.process.wait()}: {last_lines(self.log)}")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise PeerError(message["error"])
        return message

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Runs one job. Raises PeerError if the worker answers with an error, ends, or takes too long."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"its process ended with code {self.process.wait()}: {last_lines(self.log)}") from None
        return self._read()

    def pause(self) -> None:
        """Stops the worker's processes, with threads that spin."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def cpu_seconds(self) -> float:
        """Returns the processor time of all its threads so far."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.resume()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def last_lines(log: Path, count: int = 3) -> str:
    """Returns the end of a log, for an error's reason."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "nothing said"
