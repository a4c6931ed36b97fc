"""Attacks on the engine's files: whoever may write there, or hands over an engine of their own making."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hostile.clients import Target
from hostile.server import attacked
from support.fake_runtime import write_checksums
from support.toy_engine import make_toy, write_toy_engine

ENDS_EARLY = {"eos_token_id": list(range(4, 2000))}
HEAD_DIM = 300_000
RUN = """
import sys
from tensorwright import LLM, SamplingParams
from tensorwright.errors import TensorwrightError
try:
    with LLM(sys.argv[1], kv_cache_memory="1GiB", threads=1, max_batch_size=1, max_num_tokens=4) as llm:
        llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=2, detokenize=False))
        print("it ran")
except TensorwrightError as error:
    print(type(error).__name__, error)
"""


@dataclass
class Found:
    """As a row of the measurements, without honest clients."""

    row: str
    what: str
    answers: list[str]
    finding: str
    text: str = ""
    exit: int | None = None
    seconds: float = 0.0
    size: int = 1
    grown: int = 0
    over: bool = True
    quiet: dict[str, object] = field(default_factory=dict)
    during: dict[str, object] = field(default_factory=dict)


def swap_folder(engine: Path, folder: Path) -> Found:
    """As `build-engine --force` does: the folder that is served is renamed away, another takes its place."""
    live, other = folder / "live", folder / "other"
    shutil.copytree(engine, live)
    shutil.copytree(engine, other)
    defaults = other / "generation_config.json"
    defaults.write_text(json.dumps(json.loads(defaults.read_text()) | ENDS_EARLY))
    write_checksums(other, _checked(engine))
    fields = {"prompt": "import os", "max_tokens": 12, "ignore_eos": False}
    seen: list[str] = []
    with attacked(live, folder) as (_, target):
        seen.append(_text(target, fields))
        live.rename(folder / "gone")
        seen.append(_text(target, fields))
        other.rename(live)
        seen.append(_text(target, fields))
    same = len(set(seen)) == 1
    finding = "" if same else f"one request, before, in between and after: {', '.join(map(repr, seen))}"
    return Found("M1", "the folder of a served engine is replaced", ["200"], finding)


def _checked(engine: Path) -> list[str]:
    """Names of the files that checksums.txt has."""
    lines = (engine / "checksums.txt").read_text().splitlines()
    names = {str(path.relative_to(engine)) for path in engine.rglob("*") if path.is_file()}
    return sorted(name for name in names if any(line.endswith(name) for line in lines))


def _text(target: Target, fields: dict[str, object]) -> str:
    try:
        return str(target.complete(**fields)["choices"][0]["text"])
    except RuntimeError as error:
        return str(error)[:120]


def wide_heads(engine: Path, folder: Path) -> Found:
    """A plan whose records agree with each other, with heads of more columns than a stack holds."""
    made = write_toy_engine(folder / "wide", make_toy(layers=1, hidden=8, heads=1, kv_heads=1, head_dim=HEAD_DIM))
    begun = time.monotonic()
    command = [sys.executable, "-P", "-c", RUN, str(made)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = ended.stdout.strip()[:200] or ended.stderr.strip()[-200:]
    code = ended.returncode or None
    finding = "" if said.startswith("EngineError") else said or f"its process ended, code {code}"
    what, seconds = f"a plan with head_dim {HEAD_DIM}", time.monotonic() - begun
    return Found("M2", what, [said or "nothing"], finding, said, code, seconds)


LOCAL: dict[str, Callable[[Path, Path], Found]] = {"swap-folder": swap_folder, "wide-heads": wide_heads}
