"""A real server: the command in a process of its own, on loopback, with a port that the system chose."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.waiting import PATIENCE, wait_until

KEY = "first-key"
OTHER_KEY = "second-key"
MAX_BODY = 20_000
PER_ADDRESS = 8  # connections, and as many requests
PAGE = "https://page.example"
SMALL = ("--threads", "1", "--kv-cache-memory", "32MiB")


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    log: Path
    client: httpx.Client

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.rpartition("/")[2].rsplit(":", 1)
        return host, int(port)

    def log_lines(self) -> list[dict[str, Any]]:
        """The lines that are written whole; a long one may be under way."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def log_line(self, request_id: str) -> dict[str, Any]:
        """The line of one request; it is written just after the answer."""
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            lines = self.log_lines()
            found[:] = [line for line in lines if line.get("request_id") == request_id and line["message"] == "request"]
            return bool(found)

        wait_until(seen)
        return found[0]

    def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """All samples: name, labels, value."""
        from prometheus_client.parser import text_string_to_metric_families as parse

        families = parse(self.client.get("/metrics").raise_for_status().text)
        return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples that have these labels."""
        samples = [sample for sample in self.metrics() if sample[0] == name]
        assert samples, f"no metric {name}"
        return sum(value for _, has, value in samples if labels.items() <= has.items())

    def wait_until_idle(self) -> None:
        """Until no request runs or waits, and the engine's tokens are counted: a client has its answer before that, and
        what a client has left runs on for a moment."""
        counters = ("requests_running", "requests_waiting", "generated_tokens_total", "prefill_tokens_total")
        seen: list[list[float]] = []

        def stands() -> bool:
            seen.append([self.metric(f"tensorwright_{name}") for name in counters])
            return seen[-1][:2] == [0, 0] and seen[-1:] == seen[-2:-1]

        wait_until(stands, "a server without work")

    def send_raw(self, data: bytes) -> socket.socket:
        raw = socket.create_connection(self.address, timeout=PATIENCE)
        raw.sendall(data)
        return raw


@contextmanager
def serve(engine: Path, folder: Path, *options: str, files: int | None = None, **client: Any) -> Iterator[Served]:
    """files: how many the server may have open. client: keywords of httpx.Client. The engine is called "pico"."""
    command = ("serve", f"pico={engine}", *SMALL)
    with _started((*command, *options), r"serving pico at (\S+)\n", folder, files, client) as served:
        yield served


@contextmanager
def route(folder: Path, *options: str, **client: Any) -> Iterator[Served]:
    """A router. client: keywords of httpx.Client."""
    with _started(("route", *options), r"routing to .* at (\S+)\n", folder, None, client) as served:
        yield served


@contextmanager
def _started(
    words: tuple[str, ...], announced: str, folder: Path, files: int | None, client: dict[str, Any]
) -> Iterator[Served]:
    """A command that listens at a port of the system's choice. announced: a pattern of its first line, with the URL."""

    def limit() -> None:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    log = folder / f"{time.monotonic_ns()}.log"
    command = [sys.executable, "-P", "-m", "tensorwright.runtime.commands.cli", *words, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, preexec_fn=limit,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        first = process.stdout.readline()  # "" if it ended
        found = re.fullmatch(announced, first)
        assert found, (first, log.read_text(encoding="utf-8"))
        with httpx.Client(base_url=found[1], timeout=PATIENCE, trust_env=False, **client) as opened:
            yield Served(process, found[1], log, opened)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def completion(prompt: Any = "import os", max_tokens: int = 4, **fields: Any) -> dict[str, Any]:
    """The body of a request to /v1/completions."""
    return {"model": "pico", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0} | fields


def read_events(lines: Iterator[str]) -> list[str]:
    """What is left of a stream of events, without "data: "."""
    return [line.removeprefix("data: ") for line in lines if line]
