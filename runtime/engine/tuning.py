"""Reads and writes tuning.json, where an engine keeps what `tensorwright tune` found best on each machine.

The file lies in the engine's folder. It is no part of the engine's identity: no checksum covers it, no result depends
on it, and the engine runs without it. A machine is known by its processor, cores and NUMA nodes.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tensorwright.engine_format.file_names import TUNING
from tensorwright.errors import EngineError, reason
from tensorwright.json_text import read_json
from tensorwright.number_checks import is_int
from tensorwright.options.engine import MAX_THREADS

FORMAT = "tensorwright-tuning"
REMEDY = "remove it: the engine does not need it, and tensorwright tune writes another"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Tuning:
    """The choices of one machine.

    threads: None where the default is best. work_cut: the sizes that are not the defaults, by the names of
    runtime/core/base/work_cut.h. seconds: of each kind of step, "default" and "tuned".
    """

    processor: str
    cores: int
    nodes: int
    threads: int | None = None
    work_cut: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def machine(self) -> tuple[str, int, int]:
        return self.processor, self.cores, self.nodes


def read_tunings(folder: Path) -> list[Tuning]:
    """Returns the choices of all machines; [] without the file. Raises EngineError, which names the file."""
    path = folder / TUNING
    try:
        if path.stat().st_size > MAX_BYTES:
            raise EngineError(f"{path}: has more than {MAX_BYTES} bytes; {REMEDY}")
        value = read_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: cannot be read ({reason(error)}); {REMEDY}") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT or not isinstance(value.get("machines"), list):
        raise EngineError(f'{path}: must be an object with the format "{FORMAT}" and a list "machines"; {REMEDY}')
    return [_read_one(one, path) for one in value["machines"]]


def _read_one(value: Any, path: Path) -> Tuning:
    names = set(Tuning.__dataclass_fields__)
    if not isinstance(value, dict) or set(value) != names:
        raise EngineError(f"{path}: each machine must have {', '.join(sorted(names))}; {REMEDY}")
    tuning = Tuning(**value)
    checks = {
        "processor": isinstance(tuning.processor, str),
        "cores": _is_count(tuning.cores),
        "nodes": _is_count(tuning.nodes),
        "threads": tuning.threads is None or (_is_count(tuning.threads) and tuning.threads <= MAX_THREADS),
        "work_cut": isinstance(tuning.work_cut, dict) and all(map(_is_count, tuning.work_cut.values())),
        "seconds": isinstance(tuning.seconds, dict),
    }
    for name, holds in checks.items():
        if not holds:
            raise EngineError(f"{path}: {name} of a machine is wrong, {value[name]!r}; {REMEDY}")
    return tuning


def _is_count(value: Any) -> bool:
    return is_int(value) and 0 < value < 1 << 40


def find_tuning(folder: Path, machine: tuple[str, int, int]) -> Tuning | None:
    """Returns the choices of a machine, if there are any. Raises EngineError for a wrong file."""
    return next((tuning for tuning in read_tunings(folder) if tuning.machine == machine), None)


def check_writable(folder: Path) -> None:
    """Raises EngineError if write_tuning() could not put a file there, or would meet a wrong one."""
    read_tunings(folder)
    if not os.access(folder, os.W_OK):
        raise EngineError(f"{folder / TUNING}: cannot be written; give the engine a folder of yours")


def write_tuning(folder: Path, tuning: Tuning | None, machine: tuple[str, int, int]) -> Path:
    """Writes the choices of a machine in place of earlier ones, or with None removes them. Returns the file. Raises
    EngineError if it cannot be written."""
    path = folder / TUNING
    kept = [one for one in read_tunings(folder) if one.machine != machine] + ([] if tuning is None else [tuning])
    made = path.with_name(f"{TUNING}.{secrets.token_hex(4)}")
    try:
        if kept:
            content = {"format": FORMAT, "machines": [asdict(one) for one in kept]}
            made.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            os.replace(made, path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        made.unlink(missing_ok=True)
        raise EngineError(f"{path}: cannot be written ({reason(error)}); give the engine a folder of yours") from error
    return path
