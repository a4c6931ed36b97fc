"""Keeps what a replica is and what its steps cost in a file, so that a fleet of machines like this one can be simulated
elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tensorwright.errors import InvalidOptionError, reason
from tensorwright.insight.simulate.replica_shape import ReplicaShape
from tensorwright.insight.simulate.step_costs import StepCosts
from tensorwright.json_text import read_json
from tensorwright.new_file import NewFile
from tensorwright.number_checks import is_int

FORMAT = 1
"""The version of these files."""
MAX_WHOLE = 1 << 62


def write_replica(file: NewFile, shape: ReplicaShape, costs: StepCosts) -> None:
    """Writes the file. Raises OSError."""
    with file.write() as out:
        json.dump({"format": FORMAT, "replica": asdict(shape), "costs": asdict(costs)}, out, indent=2)


def read_replica(path: str | Path) -> tuple[ReplicaShape, StepCosts]:
    """Reads a file of `write_replica`. Raises InvalidOptionError for one that is none."""
    try:
        values = read_json(Path(path).expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"costs: {path} cannot be read ({reason(error)})") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT or set(values) != {"format", "replica", "costs"}:
        raise InvalidOptionError(f"costs: {path} must be a file of --save-costs of this version; make it again")
    return _record(ReplicaShape, values["replica"], f"costs: {path}: replica"), _record(
        StepCosts, values["costs"], f"costs: {path}: costs"
    )


def _record(kind: Any, values: Any, where: str) -> Any:
    """Returns the record of a dictionary whose values have the types of the record's fields."""
    names = {field.name: str(field.type) for field in fields(kind)}
    if kind is ReplicaShape and isinstance(values, dict):
        values = {"itl_goal_s": 0.0, **values}  # files of earlier versions have none
    if not isinstance(values, dict) or set(values) != set(names):
        raise InvalidOptionError(f"{where} must have {', '.join(names)}")
    for name, type_name in names.items():
        if not _KINDS[type_name](values[name]):
            raise InvalidOptionError(f"{where}: {name} must be {type_name} of 0 or more, got {values[name]!r:.60}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _is_whole(value: Any) -> bool:
    return is_int(value) and 0 <= value <= MAX_WHOLE


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


_KINDS = {
    "int": _is_whole,
    "float": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "tuple[int, ...]": lambda value: isinstance(value, list) and all(map(_is_whole, value)),
    "tuple[float, ...]": lambda value: isinstance(value, list) and all(map(_is_number, value)),
}
