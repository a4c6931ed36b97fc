"""Altered engines, as the mutation fuzzer and its corpus have them: typed errors or answers, never a crash or a hang.

TENSORWRIGHT_FUZZ_COUNT=100000 runs longer, TENSORWRIGHT_FUZZ_SEED elsewhere. Corpus: the inputs that once did harm,
and the borders; each says how it must end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import PATIENCE

HERE = Path(__file__).resolve().parent
COUNT = int(os.environ.get("TENSORWRIGHT_FUZZ_COUNT", "600"))
SEED = int(os.environ.get("TENSORWRIGHT_FUZZ_SEED", "1"))
CORPUS = sorted((HERE / "corpus").glob("*.json"))


def fuzz(work: Path, *arguments: str) -> str:
    """The fuzzer's output; a failure shows the input that it was at."""
    command = [sys.executable, "-P", str(HERE / "engine_reader.py"), str(work), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE + COUNT / 5)
    current = work / "current.json"
    at = current.read_text() if current.exists() else "the beginning"
    assert done.returncode == 0, f"exit {done.returncode} at {at}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.timeout(900 + COUNT / 5)
@pytest.mark.parametrize(("interface", "count"), [((), COUNT), (("--c-interface",), COUNT // 3)], ids=["LLM", "C"])
def test_mutated_engines_are_refused_or_run(tmp_path: Path, interface: tuple[str, ...], count: int) -> None:
    counts = json.loads(fuzz(tmp_path, "--seed", str(SEED), "--count", str(count), *interface))
    assert sum(counts.values()) == count
    assert counts["EngineError"] > count / 2
    assert counts["ran"] > count / 100  # else the mutations are so coarse that they test only the first check


def test_the_corpus_ends_as_it_says(tmp_path: Path) -> None:
    arguments = [argument for path in CORPUS for argument in ("--replay", str(path))]
    outcomes = dict(line.split("\t", 1) for line in fuzz(tmp_path, *arguments).splitlines() if "\t" in line)
    assert len(outcomes) == len(CORPUS) >= 20
    for path in CORPUS:
        expected = json.loads(path.read_text())["outcome"]
        assert re.match(expected, outcomes[path.name]), f"{path.name}: {outcomes[path.name]}"
