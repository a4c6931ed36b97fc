"""Defines the messages between the tool and its workers. Every peer's environment runs it: standard library only.

A worker is `python peer_x.py serve FOLDER FORM THREADS`. It loads once, prints {"ready": ...}, and then answers each
line of JSON on its standard input with one line on its standard output:

    {"job": "run", "prompt": 512, "batch": 1, "steps": 16, "seed": 3}
        -> {"prefill_seconds": 0.9, "decode_seconds": 0.2, "tokens": [first token of each sequence]}
    {"job": "memory"}  -> {"peak_bytes": ...}

A worker answers {"error": text} for an exception. `python peer_x.py convert CHECKPOINT FOLDER FORM` writes the peer's
files and prints {"seconds": ..., "peak_bytes": ..., "bytes_per_token": ...}.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

SMALLEST_TOKEN, LARGEST_TOKEN = 10, 30000


@dataclass(frozen=True)
class Timing:
    """The times of one job: of the prompts, until each had a first token, then of `steps` more tokens of each."""

    prefill_seconds: float
    decode_seconds: float
    tokens: list[int]


class Runner(Protocol):
    """A loaded model."""

    def run(self, prompts: list[list[int]], steps: int) -> Timing: ...


class Peer(Protocol):
    """The contents of a peer's module. FORMS: the bits of a weight by the name of the form."""

    NAME: str
    FORMS: dict[str, int]
    PACKAGES: Sequence[str]
    REMOVE: Sequence[str]
    ENVIRONMENT: dict[str, str]


def prompts(job: dict[str, Any]) -> list[list[int]]:
    """Returns the prompts of a job, the same token ids in every worker."""
    rng = random.Random(job["seed"])
    return [[rng.randrange(SMALLEST_TOKEN, LARGEST_TOKEN) for _ in range(job["prompt"])] for _ in range(job["batch"])]


def peak_bytes() -> int:
    """Returns the largest resident memory of this process so far, with mapped files."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        name = package.split("==")[0].split("[")[0]
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def own_stdout() -> TextIO:
    """Returns the real standard output. From now on libraries print to standard error."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def die_with_parent() -> None:
    """Makes the kernel end this process with its parent. A stopped worker cannot notice that the tool has ended."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def answer(runner: Runner, job: dict[str, Any]) -> dict[str, Any]:
    if job["job"] == "memory":
        return {"peak_bytes": peak_bytes()}
    if job["job"] == "run":
        return asdict(runner.run(prompts(job), job["steps"]))
    raise ValueError(f"job must be run or memory, not {job['job']!r}")


def serve(load: Callable[[], Runner], packages: Sequence[str], jobs: TextIO, answers: TextIO) -> None:
    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    start = time.perf_counter()
    try:
        runner = load()
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True, "load_seconds": time.perf_counter() - start, "versions": versions(packages)})
    for line in jobs:
        try:
            say(answer(runner, json.loads(line)))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


def main(
    convert: Callable[[Path, Path, str], None],
    runner: Callable[[Path, str, int], Runner],
    bytes_per_token: Callable[[Path, Path, str], int],
    packages: Sequence[str],
) -> None:
    """Runs the command line of a peer file."""
    answers = own_stdout()
    match sys.argv[1:]:
        case ["convert", checkpoint, folder, form]:
            start = time.perf_counter()
            places = Path(checkpoint), Path(folder)
            convert(*places, form)
            seconds = time.perf_counter() - start
            children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            facts = {"seconds": seconds, "peak_bytes": max(peak_bytes(), children)}
            answers.write(json.dumps(facts | {"bytes_per_token": bytes_per_token(*places, form)}) + "\n")
        case ["serve", folder, form, threads]:
            die_with_parent()
            serve(lambda: runner(Path(folder), form, int(threads)), packages, sys.stdin, answers)
        case other:
            sys.exit(f"usage: convert CHECKPOINT FOLDER FORM, or serve FOLDER FORM THREADS; not {other}")


def read_at_each_token(constants: dict[str, int], users: dict[str, list[tuple[str, str]]], passes: set[str]) -> int:
    """Returns the bytes of a network's constants that one token reads: all but those that only a row lookup takes.

    constants: bytes by name. users: for every value, the (kind of node, its output) that take it. passes: the kinds
    that only change the form of a weight.
    """

    def ends(name: str) -> set[str]:
        found: set[str] = set()
        for kind, output in users.get(name, []):
            found |= ends(output) if kind in passes else {kind}
        return found

    lookups = {"Gather", "GatherBlockQuantized", "Embedding"}
    return sum(size for name, size in constants.items() if not (ends(name) and ends(name) <= lookups))
