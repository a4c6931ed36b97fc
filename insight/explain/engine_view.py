"""Holds what the rows of the explanation look at: an engine's record, its graph, its costs, and the device's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.file_names import CPU_PLAN, GRAPH
from tensorwright.insight.devices.device import Device
from tensorwright.insight.estimate.costs import PlannedCosts, Work
from tensorwright.insight.estimate.roofline import time_of
from tensorwright.insight.explain.finding import Worth
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.parse import parse_graph
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir

BATCH = 16
"""The sequences of the step of many."""
PROMPT = 512
"""The tokens of the prompt."""


@dataclass(frozen=True)
class StepShape:
    """The shape of a step. pairs: how many products of a query and a key the attention of one head has, masked ones
    counted. rows: the tokens that get logits."""

    tokens: int
    pairs: int
    rows: int


Change = Callable[[Work, StepShape], Work]
"""Returns what would take the place of an instruction."""
Extra = Callable[[StepShape], list[Work]]
"""Returns further instructions of a step."""


@dataclass(frozen=True)
class EngineView:
    """An engine of any target. device: what its time is predicted on. costs: None for engines of other targets than
    cpu, whose plans are not ours to count."""

    engine: EngineDir
    device: Device
    costs: PlannedCosts | None

    @classmethod
    def of(cls, engine: EngineDir, device: Device) -> EngineView:
        engine.config.require_one_rank(engine.path, "a look at the instructions")
        costs = PlannedCosts((engine.path / CPU_PLAN).read_bytes()) if engine.target == "cpu" else None
        return cls(engine, device, costs)

    @cached_property
    def graph(self) -> Graph:
        """The graph at stage "cached"."""
        return parse_graph(self.engine.file(GRAPH).read_text(encoding="utf-8"))

    @property
    def target(self) -> str:
        return self.engine.target

    def count(self, *passes: str) -> int:
        """Returns how often passes rewrote the graph in all."""
        return sum(self.engine.config.passes.get(name, 0) for name in passes)

    def nodes(self, op: str) -> list[Node]:
        return list(self.graph.find(op))

    @cached_property
    def attentions(self) -> list[Node]:
        return self.nodes("paged_attention")

    @property
    def dtype_bytes(self) -> int:
        return ITEM_BYTES[self.engine.dtype]

    @cached_property
    def context(self) -> int:
        """The positions before the decoded token."""
        return min(PROMPT, self.engine.max_seq_len - 1)

    @cached_property
    def prompt(self) -> int:
        return min(PROMPT, self.engine.max_seq_len)

    @cached_property
    def dispatch(self) -> list[dict[str, Any]]:
        return native.dispatch_choices() if self.target == "cpu" else []

    @cached_property
    def steps(self) -> dict[str, tuple[StepShape, list[Work]]]:
        """The three steps that worths are of: a token of one sequence, a token of each of BATCH, and a prompt."""
        if self.costs is None:
            return {}
        context, prompt = self.context + 1, self.prompt
        return {
            "decode": (StepShape(1, context, 1), self.costs.step([(1, context)], 1)),
            "batch": (StepShape(BATCH, BATCH * context, BATCH), self.costs.step([(1, context)] * BATCH, BATCH)),
            "prefill": (StepShape(prompt, prompt * prompt, 1), self.costs.step([(prompt, prompt)], 1)),
        }

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The predicted times of the steps."""
        return {name: time_of(work, self.device).seconds for name, (_, work) in self.steps.items()}

    def time(self, work: list[Work]) -> float:
        """Returns the predicted seconds of a step."""
        return time_of(work, self.device).seconds

    @property
    def tuning(self) -> str | None:
        """What `tensorwright tune` found for this machine, in words; None if nothing was kept."""
        found = native.tuning_of(self.engine)
        return None if found is None else f"{found.threads or 'the default'} threads, {found.work_cut}"

    @property
    def numa_nodes(self) -> int:
        return int(native.topology()["nodes"])

    def without(self, change: Change | None = None, extra: Extra | None = None, saved: int = 0) -> Worth | None:
        """Returns what an optimization brings that is done. change, extra: what its absence would make of a step.
        saved: the bytes of memory that it saves. None for engines whose steps are not ours to count."""
        return self._worth(change, extra, saved, done=True)

    def having(self, change: Change | None = None, saved: int = 0) -> Worth | None:
        """Returns what an optimization would bring that is not done. change: what it would make of a step."""
        return self._worth(change, None, saved, done=False)

    def _worth(self, change: Change | None, extra: Extra | None, saved: int, *, done: bool) -> Worth | None:
        if self.costs is None:
            return None
        factors = {}
        for name, (shape, work) in self.steps.items():
            other = [each if change is None else change(each, shape) for each in work]
            other += [] if extra is None else extra(shape)
            seconds = time_of(other, self.device).seconds
            factors[name] = seconds / self.seconds[name] if done else self.seconds[name] / seconds
        return Worth(factors["decode"], factors["batch"], factors["prefill"], saved)


def passes_over(count: int, shape: StepShape, elements: int, bytes_of_an_element: float) -> list[Work]:
    """Returns `count` instructions of their own, each of which moves so many elements of each token."""
    moved = shape.tokens * elements * bytes_of_an_element
    return [Work("elementwise", "", "float32", moved, shape.tokens * elements)] * count


def caches_times(factor: float) -> Change:
    """Returns the change in which attention moves so many times the bytes of caches."""
    return lambda work, shape: scaled(work, others=factor) if work.op == "paged_attention" else work


def scaled(work: Work, *, weights: float = 1.0, others: float = 1.0, operations: float = 1.0) -> Work:
    """Returns an instruction that moves and computes so many times as much."""
    weight_bytes = work.weight_bytes * weights
    rest = (work.bytes - work.weight_bytes) * others
    return replace(work, bytes=weight_bytes + rest, weight_bytes=weight_bytes, operations=work.operations * operations)
