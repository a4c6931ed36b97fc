"""Defines the job of the building process, and the messages that it answers with: JSON, one object per line.

{"progress": [done, total]}
{"failed": class of the error, "text": message}
{"done": {"plan_bytes", "kernel_bytes", "seconds", "library_version", "fresh_kernels", "fixed_addresses"}}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tensorwright.engine_format.strict_json import read_value


@dataclass(frozen=True)
class Job:
    """One engine to build. Paths begin at the folder that the child runs in, and belong to the parent.

    Nothing that differs between two builds of the same engine may be in it: see fixed_addresses.py.
    """

    flavour: str
    model: str
    """The ONNX file; its external data lies beside it."""
    plan: str
    """The path that the plan is written to."""
    layers: str
    """The path that the list of final layers is written to, if the library logs one."""
    sms: tuple[int, ...]
    """Compute capabilities of the engine. An empty tuple means the library's default."""
    kernel_sms: tuple[int, ...]
    profiles: tuple[dict[str, tuple[tuple[int, ...], ...]], ...]
    """The smallest, the usual and the largest shape of each input, for each profile."""

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Job:
        job: Job = read_value(cls, json.loads(line), "job")
        return job


def to_line(message: dict[str, Any]) -> bytes:
    """Returns a message of the child as a line of JSON."""
    return json.dumps(message).encode() + b"\n"
