"""Mutates plan.bin, config.json, generation_config.json and checksums.txt of a sound engine and opens the result.

Every input must end in a typed error or in an engine that answers a request. The inputs are a function of the seed.
Runs as a process of its own, for a crash must not take the tests along; the input at work is in WORK/current.json:

    python -P tests/fuzz/engine_reader.py WORK --seed 1 --count 100000      longer than the tests do
    python -P tests/fuzz/engine_reader.py WORK --replay tests/fuzz/corpus/NAME.json
    ... --c-interface                                           opens them by libtensorwright.so in place of LLM
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import resource
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.c_library import CallError, Library
from support.fake_runtime import write_checksums
from support.toy_engine import FILES, make_toy, write_toy_engine
from tensorwright import LLM, SamplingParams, errors
from tensorwright.errors import TensorwrightError

MUTATED = ("cpu/plan.bin", "config.json", "generation_config.json", "checksums.txt")
WORDS = [0, 1, 2, 15, 16, 31, 64, 255, 256, 257, 65535, 1 << 20, 1 << 24, (1 << 24) + 1, (1 << 31) - 1, 1 << 31,
         (1 << 32) - 1, (1 << 32) - 16, 0x7F800000, 0x7FC00000]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 257, 1 << 31, 1 << 64, 10**400, 0.5, 1e308, float("nan"), "", "cpu", "\ud800", [], [0],
    [-1], [None], ["2"], [1 << 40], {}, {"a": 1},
]  # fmt: skip
LIMIT_S = 60
"""One input may take so long; then the process ends with the code of a hang."""

Edit = dict[str, Any]
"""{"file", "op", ...}: see `apply`."""


def apply(data: bytes, edit: Edit) -> bytes:
    """One change of one file's bytes."""
    op, at = edit["op"], min(edit.get("at", 0), len(data))
    if op == "overwrite":
        new = bytes.fromhex(edit["hex"])
        return data[:at] + new + data[at + len(new) :]
    if op == "insert":
        return data[:at] + bytes.fromhex(edit["hex"]) * edit.get("times", 1) + data[at:]
    if op == "cut":
        return data[:at] + data[at + edit["count"] :]
    if op == "replace":
        return bytes.fromhex(edit["hex"]) * edit.get("times", 1)
    assert op == "json"  # sets one value, by its path
    return set_value(data, edit["path"], edit["value"])


def set_value(data: bytes, path: list[str], value: Any) -> bytes:
    try:
        whole = inner = json.loads(data)
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
    except (ValueError, TypeError, KeyError):
        return data  # an earlier edit took the place away
    return json.dumps(whole).encode()


def random_edit(rng: random.Random, sound: dict[str, bytes]) -> Edit:
    file = rng.choices(MUTATED, [6, 4, 1, 1])[0]
    data = sound[file]
    at = rng.randrange(len(data))
    if file.endswith(".json") and rng.random() < 0.7:
        return {"file": file, "op": "json", "path": random_path(rng, data), "value": rng.choice(VALUES)}
    kind = rng.random()
    if kind < 0.45:
        word = rng.choice(WORDS).to_bytes(4, "little")
        return {"file": file, "op": "overwrite", "at": at // 4 * 4, "hex": word.hex()}
    if kind < 0.7:
        return {"file": file, "op": "overwrite", "at": at, "hex": bytes([data[at] ^ 1 << rng.randrange(8)]).hex()}
    if kind < 0.8:
        source = rng.randrange(len(data))
        return {"file": file, "op": "overwrite", "at": at, "hex": data[source : source + rng.randrange(1, 80)].hex()}
    if kind < 0.9:
        return {"file": file, "op": "cut", "at": at, "count": rng.choice([1, 4, 96, len(data)])}
    return {"file": file, "op": "insert", "at": at, "hex": rng.randbytes(rng.choice([1, 4, 24])).hex()}


def random_path(rng: random.Random, data: bytes) -> list[str]:
    path: list[str] = []
    inner = json.loads(data)
    while isinstance(inner, dict) and inner and (not path or rng.random() < 0.8):
        path.append(rng.choice([*inner, "eos_token_id"]))
        inner = inner.get(path[-1])
    return path or ["eos_token_id"]


def random_case(rng: random.Random, sound: dict[str, bytes]) -> dict[str, Any]:
    """sealed: the checksums are made true again, so that the checks behind them are reached."""
    return {
        "edits": [random_edit(rng, sound) for _ in range(rng.choice([1, 1, 1, 2, 3]))],
        "sealed": rng.random() < 0.85,
    }


class Reader:
    """Opens altered engines in one folder. library: opens them by the C interface; None by LLM."""

    def __init__(self, work: Path, library: Library | None = None):
        self.work = work
        self.library = library
        self.engine = write_toy_engine(work / "engine", make_toy(window=20))
        self.sound = {name: (self.engine / name).read_bytes() for name in (*FILES, "checksums.txt")}

    def outcome(self, case: dict[str, Any]) -> str:
        """ "ran", or "ErrorType: message". Anything else is raised."""
        (self.work / "current.json").write_text(json.dumps(case))
        files = dict(self.sound)
        for edit in case["edits"]:
            files[edit["file"]] = apply(files[edit["file"]], edit)
        for name, data in files.items():
            (self.engine / name).write_bytes(data)
        if case["sealed"] and files["checksums.txt"] == self.sound["checksums.txt"]:
            write_checksums(self.engine, list(FILES))
        watchdog = threading.Timer(LIMIT_S, hang)
        watchdog.start()
        try:
            return self._open() if self.library is None else self._open_in_c(self.library)
        except TensorwrightError as error:
            return f"{type(error).__name__}: {error}"
        except CallError as error:
            if not hasattr(errors, error.kind):
                raise
            return str(error)
        finally:
            watchdog.cancel()

    def _open(self) -> str:
        with LLM(self.engine, kv_cache_memory="1MiB", threads=1, max_batch_size=2, max_num_tokens=8) as llm:
            output = llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=2, seed=1, logprobs=1))
            assert output.finished
        return "ran"

    def _open_in_c(self, library: Library) -> str:
        with library.open(self.engine, max_batch_size=2, max_num_tokens=8) as engine:
            assert all(one.finish for one in engine.generate([1, 2, 3], max_tokens=2, seed=1, logprobs=1))
        return "ran"


def hang() -> None:
    print(f"HANG: an input took over {LIMIT_S} s", flush=True)
    import os

    os._exit(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--replay", type=Path, action="append", help="a file of the corpus instead")
    parser.add_argument("--c-interface", action="store_true")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a plan that asks for a terabyte must not get it
    reader = Reader(arguments.work, Library() if arguments.c_interface else None)
    if arguments.replay:
        for path in arguments.replay:
            print(f"{path.name}\t{reader.outcome(json.loads(path.read_text()))}", flush=True)
        return
    rng = random.Random(arguments.seed)
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(arguments.count):
        counts[reader.outcome(random_case(rng, reader.sound)).split(":")[0]] += 1
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
