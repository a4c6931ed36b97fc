"""Runs a server under test: starts it, waits for it, stops it while others are measured, ends all its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import protocol
from worker import PeerError, last_lines


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`command` listens on `port`; `ready` is the path that answers 200 once the model is loaded."""

    def __init__(self, command: list[str], port: int, ready: str, log: Path, variables: dict[str, str]):
        self.url, self.log = f"http://127.0.0.1:{port}", log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | variables,
                start_new_session=True,  # a group of its own, which is stopped and ended as a whole
                preexec_fn=protocol.die_with_parent,
            )
        self.ready = ready

    def wait_until_ready(self, timeout: float) -> float:
        """Returns the seconds it took. Raises PeerError if the process ends first, or is not ready in time."""
        start = time.monotonic()
        while time.monotonic() - start < timeout:
            if self.process.poll() is not None:
                raise PeerError(f"its server ended with code {self.process.returncode}: {last_lines(self.log)}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(self.url + self.ready, timeout=5, trust_env=False).status_code == 200:
                    return time.monotonic() - start
            time.sleep(0.1)
        raise PeerError(f"its server was not ready within {timeout:.0f} s: {last_lines(self.log)}")

    def pause(self) -> None:
        """Stops all the server's processes, with threads that spin."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self.resume()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=20)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
