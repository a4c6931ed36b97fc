"""Sums the time of an engine's steps by op and by module, separately for prefill and decode.

The shape of a step gives its phase: several tokens of each sequence (prefill), one token of each (decode), or both
kinds of sequences (mixed: prompts that came while other requests were answered).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tensorwright.runtime.tools.ceilings import Ceilings

PHASES = ("prefill", "decode", "mixed")
_LAYER = re.compile(r"(?:^|.*?\.)\d+\.")


@dataclass(frozen=True)
class OpSums:
    """The sums of one op, or of one op of one module in all layers.

    ideal_seconds: the time at the ceilings, computed for each instruction by itself.
    """

    op: str
    module: str  # "" means all modules.
    calls: int
    seconds: float
    bytes: int
    operations: int
    ideal_seconds: float

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def operations_per_second(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0

    @property
    def roofline(self) -> float:
        """The ideal time over the measured time. More than 1 means that a part of the bytes came from a cache."""
        return self.ideal_seconds / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class ExpertCounts:
    """How often each expert of a layer was taken: taken[e] rows took expert e. bytes: of experts that were read."""

    module: str
    taken: list[int]
    bytes: int

    @property
    def entropy(self) -> float:
        """The entropy of the choice in bits. It is log2 of the number of experts if all are taken alike."""
        total = sum(self.taken)
        return sum(count / total * math.log2(total / count) for count in self.taken if count)


@dataclass(frozen=True)
class PhaseProfile:
    """All steps of a phase. ops, modules: the sums, the longest first; each list adds up to the whole.

    experts: the layers of experts, in the order in which they run.
    """

    phase: str
    steps: int
    tokens: int
    seconds: float
    ops: list[OpSums]
    modules: list[OpSums]
    experts: list[ExpertCounts]

    @property
    def roofline(self) -> float:
        return sum(op.ideal_seconds for op in self.ops) / self.seconds if self.seconds else 0.0


def summarise(measured: dict[str, Any], ceilings: Ceilings) -> list[PhaseProfile]:
    """Returns the profile of each phase that has steps. measured: the result of `LLM.get_profile`."""
    phases = []
    for name in PHASES:
        steps = measured[name]["steps"]
        if steps["steps"] == 0:
            continue
        each = [_sums_of(row, ceilings) for row in measured[name]["instructions"]]
        ops, modules = _add_up(each, by_module=False), _add_up(each, by_module=True)
        experts = [
            ExpertCounts(row["name"], row["expert_rows"], row["bytes"])
            for row in measured[name]["instructions"]
            if "expert_rows" in row
        ]
        phases.append(PhaseProfile(name, steps["steps"], steps["tokens"], steps["ns"] * 1e-9, ops, modules, experts))
    return phases


def module_role(path: str) -> str:
    """Returns the name of a module within its layer: mlp.down_proj for model.layers.3.mlp.down_proj."""
    return _LAYER.sub("", path) or path


def as_dict(phases: list[PhaseProfile], ceilings: Ceilings) -> dict[str, Any]:
    """Returns the profile as plain data for --json. Rates are per second."""
    return {
        "ceilings": asdict(ceilings),
        "phases": {
            phase.phase: {
                "steps": phase.steps,
                "tokens": phase.tokens,
                "seconds": phase.seconds,
                "roofline": phase.roofline,
                "ops": [_sums_as_dict(sums) for sums in phase.ops],
                "modules": [_sums_as_dict(sums) for sums in phase.modules],
                "experts": [asdict(layer) | {"entropy": layer.entropy} for layer in phase.experts],
            }
            for phase in phases
        },
    }


def _sums_as_dict(sums: OpSums) -> dict[str, Any]:
    rates = {name: getattr(sums, name) for name in ("bytes_per_second", "operations_per_second", "roofline")}
    return {name: value for name, value in asdict(sums).items() if value != ""} | rates


def _sums_of(row: dict[str, Any], ceilings: Ceilings) -> OpSums:
    ideal = ceilings.ideal_seconds(row["arithmetic"], row["bytes"], row["ops"])
    return OpSums(row["op"], module_role(row["name"]), row["calls"], row["ns"] * 1e-9, row["bytes"], row["ops"], ideal)


def _add_up(each: Iterable[OpSums], by_module: bool) -> list[OpSums]:
    groups: dict[tuple[str, str], list[OpSums]] = {}
    for sums in each:
        groups.setdefault((sums.op, sums.module if by_module else ""), []).append(sums)
    added = [
        OpSums(
            op,
            module,
            sum(part.calls for part in parts),
            sum(part.seconds for part in parts),
            sum(part.bytes for part in parts),
            sum(part.operations for part in parts),
            sum(part.ideal_seconds for part in parts),
        )
        for (op, module), parts in groups.items()
    ]
    return sorted(added, key=lambda sums: -sums.seconds)
