"""Predicts the time of a step: each instruction needs its bytes and its operations at the device's rates.

An instruction takes the time of its bytes or of its operations, whichever is longer, and a moment to begin. Kernels
reach a share of the device's rates. The shares of target cpu were measured (efficiencies.json); on other devices they
are assumptions, and are said with every estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tensorwright.insight.devices.device import Device
from tensorwright.insight.estimate.costs import Work
from tensorwright.json_text import read_json

TABLE = Path(__file__).with_name("efficiencies.json")


@dataclass(frozen=True)
class Efficiency:
    """What kernels reach. bytes, operations: shares of the device's rates, the latter of a large instruction. half: the
    size at which half of `operations` is reached. seconds: what an instruction takes beside. source: where the shares
    are from."""

    bytes: float
    operations: float
    half: float
    seconds: float
    source: str

    def operations_at(self, size: float) -> float:
        """Returns the share of the peak that an instruction of so many rows, or so long a context, reaches."""
        return self.operations * size / (size + self.half)


@dataclass(frozen=True)
class StepTime:
    """The time of a step. byte_seconds, operation_seconds: the time of the instructions that wait for the bytes, and of
    those that wait for the arithmetic. bytes, operations: the sums."""

    seconds: float
    byte_seconds: float
    operation_seconds: float
    bytes: float
    operations: float

    @property
    def bound(self) -> str:
        """What holds the step up: "bytes" or "operations"."""
        return "bytes" if self.byte_seconds >= self.operation_seconds else "operations"

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes if self.bytes else 0.0


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = read_json(TABLE.read_bytes())
    return tables


@cache
def efficiency(platform: str, op: str, weights: str = "") -> Efficiency:
    """Returns what the kernels of an op reach on a platform, or what is assumed of it. The table's most special entry
    counts: of the op with weights of this format, of this type, of the op, of any."""
    tables = _tables()
    table = tables.get(platform, tables["other"])
    names = (f"{op} {weights}", f"{op} {weights.partition(':')[0]}", op, "*")
    row = next(table["ops"][name] for name in names if name in table["ops"])
    return Efficiency(
        row["bytes"], row["operations"], row.get("half", 0.0), row.get("microseconds", table["microseconds"]) * 1e-6,
        table["source"],
    )  # fmt: skip


def time_of(work: Iterable[Work], device: Device) -> StepTime:
    """Predicts the time of a step on a device."""
    seconds = byte_seconds = operation_seconds = bytes_moved = operations = 0.0
    for each in work:
        reached = efficiency(device.platform.name, each.op, each.weights)
        reads = each.bytes / (device.bandwidth * reached.bytes)
        computes = 0.0
        if each.operations:
            computes = each.operations / (device.peak(each.arithmetic) * reached.operations_at(each.size))
        longer = max(reads, computes)
        seconds += longer + reached.seconds
        if reads >= computes:
            byte_seconds += longer
        else:
            operation_seconds += longer
        bytes_moved += each.bytes
        operations += each.operations
    return StepTime(seconds, byte_seconds, operation_seconds, bytes_moved, operations)


def process_bytes(platform: str) -> int:
    """Returns the memory that a process takes beside weights, caches and activations."""
    tables = _tables()
    return int(tables.get(platform, tables["other"])["process_bytes"])


def step_seconds(platform: str) -> Efficiency:
    """Returns what a step takes beside its instructions, and the source of all shares of a platform."""
    tables = _tables()
    table = tables.get(platform, tables["other"])
    return Efficiency(1.0, 1.0, 0.0, table["step_microseconds"] * 1e-6, table["source"])
