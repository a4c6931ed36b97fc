"""The real tritonserver of `make triton-venv`, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE
from tensorwright.runtime.serving.triton.wheel_server import ServerVenv

ROOT = Path(__file__).resolve().parents[2]
SHM = Path("/dev/shm")


def server_venv() -> ServerVenv:
    return ServerVenv(Path(os.environ.get("TENSORWRIGHT_TRITON_VENV", ROOT / ".venv-triton")).absolute())


class TritonServer:
    """A running server. `http`, `grpc` and `metrics` are addresses; `stop` returns the exit status."""

    def __init__(
        self,
        venv: ServerVenv,
        repository: Path,
        log: Path,
        *arguments: str,
        backends: Path | None = None,
        exit_timeout: int = 120,
    ):
        self.prefix = f"tensorwright_{uuid.uuid4().hex[:8]}_"
        self.log = log
        self.exit_timeout = exit_timeout
        http, grpc, metrics = free_ports(3)
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in (http, grpc, metrics))
        command: list[Any] = [venv.server, f"--model-repository={repository}"]
        command += [f"--backend-directory={backends or venv.backends}", f"--exit-timeout-secs={exit_timeout}"]
        for kind, port in (("http", http), ("grpc", grpc), ("metrics", metrics)):
            command += [f"--{kind}-address=127.0.0.1", f"--{kind}-port={port}"]
        command += ["--pinned-memory-pool-byte-size=0", "--allow-gpu-metrics=false", "--log-verbose=0"]
        command += [f"--backend-config=python,shm-region-prefix-name={self.prefix}", *arguments]
        # A model's process on a busy machine may need more than Triton's 30 seconds to begin.
        for backend in ("python", "tensorwright"):
            command.append(f"--backend-config={backend},stub-timeout-seconds={PATIENCE:.0f}")
        with log.open("wb") as output:
            # Not in the repository's root: the working folder is on the embedded Python's path.
            self.process = subprocess.Popen(
                command,
                env=venv.environment,
                cwd=log.parent,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.get("/v2/health/ready")[0] != 200:
            status = self.process.poll()
            if status is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"tritonserver: status {status}, not ready; its log:\n{self.log.read_text()[-6000:]}"
                )
            time.sleep(0.05)

    def get(self, path: str, body: Any = None, address: str | None = None) -> tuple[int, str]:
        """GET, or POST of a body as JSON; status and text, 0 if there was no answer."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://{address or self.http}{path}", data, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def is_ready(self, model: str) -> bool:
        return self.get(f"/v2/models/{model}/ready")[0] == 200

    def load(self, model: str, **parameters: Any) -> tuple[int, str]:
        return self.get(f"/v2/repository/models/{model}/load", {"parameters": parameters} if parameters else {})

    def unload(self, model: str) -> tuple[int, str]:
        return self.get(f"/v2/repository/models/{model}/unload", {})

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one sample on the metrics port; labels: those that it must have, among others."""
        for line in self.get("/metrics", address=self.metrics)[1].splitlines():
            sample, _, value = line.rpartition(" ")
            family, _, rest = sample.partition("{")
            if family == name and all(f'{key}="{wanted}"' in rest for key, wanted in labels.items()):
                return float(value)
        return None

    def processes(self) -> list[int]:
        """The models' processes: children of the server's threads."""
        found: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread that ended meanwhile
                found += map(int, (task / "children").read_text().split())
        return found

    def shared_memory(self) -> list[str]:
        return sorted(each.name for each in SHM.glob(f"{self.prefix}*"))

    def stop(self) -> int:
        """SIGTERM, and kill when the server's own exit timeout has passed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(self.exit_timeout + PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.wait()

    def kill(self) -> None:
        """Ends the server and its models' processes at once; what they leave in shared memory is removed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for each in self.shared_memory():
            (SHM / each).unlink(missing_ok=True)

    def __enter__(self) -> TritonServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self.kill()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on. Linux gives none of these to connections or to port 0, so that no other process
    takes one by chance before the server does."""
    found: set[int] = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return [*found]
