"""Compares two engines: graphs, formats, accuracy, sizes, memory, speed, passes, and instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.insight.devices.device import Device
from tensorwright.insight.devices.here import measure_here
from tensorwright.insight.diff.graphs import ModuleChange, compare_graphs, count_nodes
from tensorwright.insight.estimate.costs import token_bytes
from tensorwright.insight.explain.engine_view import EngineView
from tensorwright.insight.explain.measure import step_seconds
from tensorwright.runtime.base.host import default_threads
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine

ROUNDS = 3
"""How often the engines take turns where their speed is measured."""


@dataclass(frozen=True)
class Change:
    """A fact that differs. None means that the engine lacks it."""

    name: str
    a: Any
    b: Any

    @property
    def ratio(self) -> float | None:
        """b over a, where both are numbers and a is not 0."""
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (self.a, self.b))
        return self.b / self.a if numbers and self.a else None


@dataclass(frozen=True)
class Difference:
    """What differs between two engines, by kind. speed: seconds of steps, predicted or measured, equal ones too."""

    a: str
    b: str
    model: tuple[Change, ...]
    options: tuple[Change, ...]
    formats: tuple[Change, ...]
    accuracy: tuple[Change, ...]
    sizes: tuple[Change, ...]
    memory: tuple[Change, ...]
    passes: tuple[Change, ...]
    instructions: tuple[Change, ...]
    graph: tuple[ModuleChange, ...]
    nodes: tuple[int, int]
    speed: tuple[Change, ...]
    speed_is: str

    @property
    def equal(self) -> bool:
        """Whether nothing but times and places differs."""
        kinds = (self.model, self.options, self.formats, self.accuracy, self.sizes, self.memory, self.passes)
        return not any(kinds) and not self.instructions and not self.graph


def diff(a: str | Path, b: str | Path, *, measure: bool = False) -> Difference:
    """Compares the engines at `a` and `b`. measure: runs steps of both in turns, where both are of target cpu;
    otherwise their speed is predicted. Raises EngineError."""
    engines = open_engine(a), open_engine(b)
    device = measure_here(None)[0]
    views = [EngineView.of(engine, device) for engine in engines]
    one, other = (engine.config for engine in engines)
    speed, speed_is = _speed(engines, views, device, measure)
    return Difference(
        str(a), str(b),
        changes(_model(one), _model(other)),
        changes(one.build_options, other.build_options),
        changes(_formats(one), _formats(other)),
        changes(_accuracy(one), _accuracy(other)),
        changes(_files(engines[0]), _files(engines[1])),
        changes(_memory(views[0]), _memory(views[1])),
        changes(one.passes, other.passes),
        changes(_instructions(views[0]), _instructions(views[1])),
        tuple(compare_graphs(views[0].graph, views[1].graph)),
        (count_nodes(views[0].graph), count_nodes(views[1].graph)),
        speed, speed_is,
    )  # fmt: skip


def changes(a: dict[str, Any], b: dict[str, Any]) -> tuple[Change, ...]:
    """Returns the facts that differ, those of `a` first."""
    names = dict.fromkeys([*a, *b])
    return tuple(Change(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))


def _model(config: EngineConfig) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(config.model).items() if name not in ("left_out", "longrope")}
    heads = None if config.heads is None else config.heads.kind
    source = {"checkpoint": config.source.hash[:16], "built by": config.tensorwright_version}
    return facts | source | {"target": config.target, "dtype": config.dtype, "heads": heads} | asdict(config.limits)


def _formats(config: EngineConfig) -> dict[str, Any]:
    record = config.quantization
    if record is None:
        return {}
    by_layer = {f"{role} by layer": row for role, row in (record.formats or {}).items()}
    bits = {f"bits per weight of {role}": value for role, value in record.bits_per_weight.items()}
    return {"formats": record.spec.summary} | bits | by_layer


def _accuracy(config: EngineConfig) -> dict[str, Any]:
    if config.accuracy is None:
        return {}
    facts = asdict(config.accuracy)
    output_errors = facts.pop("output_errors") or {}
    means = {
        f"error of {role}": sum(known) / len(known)
        for role, row in output_errors.items()
        if (known := [value for value in row if value is not None])
    }
    return facts | means


def _files(engine: EngineDir) -> dict[str, Any]:
    files = {name: entry.size for name, entry in engine.files.items()}
    return files | {"in all": sum(files.values())}


def _memory(view: EngineView) -> dict[str, Any]:
    limits = view.engine.config.limits
    facts: dict[str, Any] = {"KV cache, bytes per token": limits.kv_block_bytes / limits.block_size}
    if limits.state_bytes:
        facts["states, bytes per sequence"] = limits.state_bytes
    if view.costs is not None:
        step = view.costs.memory(512, 1, 1, 1)
        facts["KV cache, bytes per token"] = token_bytes(view.costs)
        facts["activations of 512 tokens, bytes"] = step.activations
        facts["weights, bytes"] = view.costs.weights_bytes
    return facts


def _instructions(view: EngineView) -> dict[str, int]:
    """Returns how many instructions of each kind a step has, with the type of their arithmetic."""
    if view.costs is None:
        return dict(Counter(node.op for node in view.graph.nodes))
    return dict(Counter(f"{work.op} in {work.arithmetic}" for work in view.steps["decode"][1]))


def _speed(
    engines: tuple[EngineDir, EngineDir], views: list[EngineView], device: Device, measure: bool
) -> tuple[tuple[Change, ...], str]:
    if any(view.costs is None for view in views):
        return (), "neither measured nor predicted: one engine is not of target cpu"
    if not measure:
        a, b = (view.seconds for view in views)
        return tuple(Change(name, a[name], b[name]) for name in a), f"predicted on {device.name} ({device.source})"
    threads = default_threads()
    best: list[dict[str, float]] = [{}, {}]
    for _ in range(ROUNDS):
        for engine, times in zip(engines, best, strict=True):
            for name, seconds in step_seconds(engine, threads).items():
                times[name] = min(times.get(name, float("inf")), seconds)
    a, b = best
    return tuple(Change(name, a[name], b[name]) for name in a), f"measured with {threads} threads, in turns"


def as_dict(found: Difference) -> dict[str, Any]:
    """Returns the difference as plain data. Changes are {name: [a, b]}."""
    kinds = ("model", "options", "formats", "accuracy", "sizes", "memory", "passes", "instructions", "speed")
    tables = {kind: {change.name: [change.a, change.b] for change in getattr(found, kind)} for kind in kinds}
    graph = [asdict(change) for change in found.graph]
    return {"a": found.a, "b": found.b, "equal": found.equal, **tables, "speed_is": found.speed_is, "graph": graph,
            "nodes": list(found.nodes)}  # fmt: skip
