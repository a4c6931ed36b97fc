"""Hostile values to the Python API and to Triton's models: a typed error, or a bounded amount of work."""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hostile.arena import LIMIT, LONGEST_GAP, MOST_MEMORY, NOISE, TRIES
from hostile.in_process import Report
from hostile.parameters import FIELDS, GUIDED
from tensorwright import GuidedDecodingParams, SamplingParams

SCRIPT = Path(__file__).with_name("in_process.py")
START = 240.0  # seconds for the process to begin
DEATHS = 40  # of processes, until nothing more is tried


class Child:
    """Attacks of one kind, from one of them on."""

    def __init__(self, kind: str, engine: Path, first: int, errors: Path):
        command = [sys.executable, "-P", str(SCRIPT), kind, str(engine), str(first)]
        with errors.open("a") as stderr:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def next(self, seconds: float) -> dict[str, Any] | str:
        """What it says, or how it ended."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return f"not over after {seconds:g} s"
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
        return f"its process ended, code {self.process.wait(START)}" if not line else f"it wrote {line!r}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def attack(kind: str, engine: Path, errors: Path) -> list[str]:
    """Faults of all attacks of this kind. Where one ends the process, another goes on with the next."""
    faults: list[str] = []
    done = 0
    for _ in range(DEATHS):
        child = Child(kind, engine, done, errors)
        try:
            done, over = _follow(child, done, faults)
        finally:
            child.close()
        if over:
            return faults
    return [*faults, f"{DEATHS} processes ended; nothing more was tried"]


def _follow(child: Child, done: int, faults: list[str]) -> tuple[int, bool]:
    """(attacks that are done, whether all are)."""
    name, wait = "the start", START
    while True:
        said = child.next(wait)
        if isinstance(said, str):
            errors = f"{name}: {said}"
            faults.append(errors)
            return done + (name != "the start"), name == "the start"
        if "begins" in said:
            name, wait = said["begins"], TRIES * LIMIT
        elif "ends" in said:
            done, wait = done + 1, START
            faults += [f"{name}: {fault}" for fault in Report(**said).faults(LONGEST_GAP, NOISE, MOST_MEMORY)]
        else:
            faults += [f"at the end {count} {what} are held" for what, count in said["held"].items() if count]
            return done, True


@pytest.mark.parametrize("kind", ["api", "both", "llmapi"])
def test_hostile_values_hold_nobody_up(pico_engine: Path, tmp_path: Path, kind: str) -> None:
    faults = attack(kind, pico_engine, tmp_path / "errors")
    if faults:
        said = (tmp_path / "errors").read_text(errors="replace")[-2000:]
        pytest.fail("\n".join([*faults, said]), pytrace=False)


@pytest.mark.parametrize(("owner", "rows"), [(SamplingParams, FIELDS), (GuidedDecodingParams, GUIDED)])
def test_every_parameter_has_a_row(owner: Any, rows: Any) -> None:
    assert {each.name for each in dataclasses.fields(owner)} == set(rows)
