"""Runs the passes in order, in phases: from a traced graph to a lowered graph with a memory plan.

`run_pipeline` verifies the graph around every pass, counts rewrites, holds the counts against what is expected, and,
when asked, compares what the graph computes before and after each pass (`compare.py`) and dumps the graph after each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwright.errors import GraphError, InvalidOptionError, PassError, TensorwrightError
from tensorwright.ir import Graph
from tensorwright.ir.ops import STAGES
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import Verified
from tensorwright.ir.verify import verify as verify_graph
from tensorwright.passes.fold_channel_scales import fold_channel_scales
from tensorwright.passes.insert_kv_cache import insert_kv_cache
from tensorwright.passes.keep_outlier_columns import keep_outlier_columns
from tensorwright.passes.limit_attention import limit_attention
from tensorwright.passes.limit_kv_cache import limit_kv_cache
from tensorwright.passes.lower_to_cpu import lower_to_cpu
from tensorwright.passes.lower_weight_only import lower_but_rounded, lower_weight_only
from tensorwright.passes.order_columns import order_columns
from tensorwright.passes.plan_memory import plan_memory
from tensorwright.passes.quantize_kv_cache import quantize_kv_cache
from tensorwright.passes.quantize_weights import quantize_weights
from tensorwright.passes.recognition import RECOGNITION, Phase, Step
from tensorwright.passes.rewriting.compare import Comparison, Weights
from tensorwright.passes.rewriting.matcher import Pattern, closest
from tensorwright.passes.shard_layers import shard_layers
from tensorwright.passes.shard_tensors import shard_tensors
from tensorwright.passes.shard_vocabulary import shard_vocabulary
from tensorwright.passes.sparsify_prefill import sparsify_prefill

PIPELINE: tuple[Phase, ...] = (
    *RECOGNITION,
    Phase("cache", "cached", (
        Step(insert_kv_cache, "from one sequence to a ragged batch", after=("fuse_qkv",)),
    )),
    Phase("shard", "cached", (
        Step(shard_layers, "first whose layers they are", after=("insert_kv_cache",)),
        Step(shard_tensors, "before formats: what is rounded is what a rank has", after=("shard_layers",)),
        Step(shard_vocabulary, "after the layers, whose products end in sums", after=("shard_tensors",)),
    )),
    Phase("quantize", "cached", (
        Step(quantize_weights, "what is rounded holds for any target", after=("insert_kv_cache",), lossy="always"),
        Step(fold_channel_scales, "after the formats, which say whose channels; before they are packed",
             after=("quantize_weights",)),
        Step(order_columns, "after the formats, which say what has codes; before they are packed",
             after=("quantize_weights",), lossy="always"),
        Step(keep_outlier_columns, "after the formats, which say what is rounded", after=("quantize_weights",),
             lossy="always"),
        Step(quantize_kv_cache, "one layer, one type of cache", after=("insert_kv_cache",), lossy="always"),
        Step(limit_attention, "what the user gives up, like the rounding above", after=("insert_kv_cache",),
             lossy="always"),
        Step(limit_kv_cache, "likewise", after=("insert_kv_cache",), lossy="always"),
        Step(sparsify_prefill, "after windows and budgets, which it does not go with",
             after=("limit_attention", "limit_kv_cache"), lossy="always"),
    )),
    Phase("lower", "lowered", (
        Step(lower_to_cpu, "one node per instruction, final types", after=("insert_kv_cache",), lossy="bfloat16"),
        Step(plan_memory, "last: a plan holds for one order of nodes", after=("lower_to_cpu",)),
    )),
)  # fmt: skip


WEIGHT_ONLY_PIPELINE: tuple[Phase, ...] = (
    *PIPELINE[:-1],
    Phase("lower", "cached", (
        Step(lower_weight_only, "these targets do not round activations", after=("quantize_weights",), lossy="always"),
    )),
)  # fmt: skip
"""The passes of every target except cpu and cuda. The emitters of these targets take a graph at stage "cached"."""

CUDA_PIPELINE: tuple[Phase, ...] = (
    *PIPELINE[:-1],
    Phase("lower", "cached", (
        Step(lower_but_rounded, "this target rounds activations for w8a8 alone", after=("quantize_weights",),
             lossy="always"),
    )),
)  # fmt: skip
"""The passes of target cuda, whose emitter takes a graph at stage "cached" too."""


@dataclass
class PassReport:
    """The results of `run_pipeline`. Counts and times are sums over all runs of a pass, in order of first run."""

    graph: Graph
    """The graph after the last phase: lowered, with a memory plan, or in the form that the target's emitter takes."""
    cached_graph: Graph
    """The target-independent graph, at stage "cached", before the last phase. graph.txt holds this graph."""
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    """The largest change of a logit over each pass, lossy ones included. Empty without `verify`."""


def run_pipeline(
    graph: Graph,
    *,
    verify: bool = False,
    weights: Weights | None = None,
    dump: str | Path | None = None,
    expectations: Mapping[str, int] | None = None,
    progress: Callable[[str, int, float], None] | None = None,
    pipeline: tuple[Phase, ...] = PIPELINE,
    done: Mapping[str, int] | None = None,
    choose: Callable[[Graph], None] | None = None,
) -> PassReport:
    """Takes a traced graph through all passes. `graph` itself does not change.

    verify: compares outputs before and after each pass on real inputs; needs `weights`, which returns the tensor of an
    expression. dump: a folder that gets NN_<pass>.txt after each pass. expectations: pass -> count. progress is called
    with (pass, count, seconds). done: the passes that ran on the graph before, with their counts; `pipeline` has the
    rest. choose: completes the facts of the graph before phase "quantize". Raises PassError that names the pass, the
    passes before it and the node; LoweringError and UnsupportedModelError for models that cannot be built;
    InvalidOptionError.
    """
    if verify and weights is None:
        raise InvalidOptionError("verify needs weights: a function that gives the tensor of a weight expression")
    done = dict(done or {})
    check_order(pipeline, tuple(done))
    run = _Run(graph.clone(), pipeline, dict(expectations or {}), Comparison(weights) if verify and weights else None)
    run.dump = Path(dump) if dump is not None else None
    run.report.cached_graph, run.report.counts = graph, done
    for phase in pipeline:
        if choose is not None and phase.name == "quantize":
            choose(run.report.graph)
        for i, step in enumerate(phase.steps):
            run.step(phase, step, first=i == 0)
            if progress is not None:
                progress(step.name, run.last[0], run.last[1])
        if phase.stage == "cached" and phase is not pipeline[-1]:
            run.report.graph.restart_names()
            run.report.cached_graph = run.report.graph.clone()
    return run.report


def check_order(pipeline: tuple[Phase, ...], done: tuple[str, ...] = ()) -> None:
    """Raises PassError if a pass stands before one that it must follow. done: passes that ran before the first."""
    names = [*done, *(step.name for phase in pipeline for step in phase.steps)]
    at = len(done)
    for phase in pipeline:
        for step in phase.steps:
            for other in step.after:
                if other not in names[:at]:
                    raise PassError(f"{step.name} must come after {other} in the pipeline, and it does not")
            for other in step.before:
                if other not in names[at + 1 :]:
                    raise PassError(f"{step.name} must come before {other} in the pipeline, and it does not")
            at += 1


class _Run:
    """One run of the pipeline."""

    def __init__(
        self, graph: Graph, pipeline: tuple[Phase, ...], expected: dict[str, int], comparison: Comparison | None
    ):
        self.report = PassReport(graph, graph)
        self.names = [step.name for phase in pipeline for step in phase.steps]
        self.expected = expected
        self.comparison = comparison
        self.verified = Verified()
        self.done: list[str] = []
        self.last: tuple[int, float] = (0, 0.0)
        self.dump: Path | None = None
        unknown = sorted(set(expected) - set(self.names))
        if unknown:
            raise InvalidOptionError(
                f"no pass is called {', '.join(unknown)}; there are {', '.join(sorted(set(self.names)))}"
            )

    def step(self, phase: Phase, step: Step, *, first: bool) -> None:
        graph = self.report.graph
        start = time.perf_counter()
        try:
            if not self.done:
                verify_graph(graph, graph.stage, self.verified)
                self.compare_first()
            if first and phase.stage == "fused" and STAGES.index(graph.stage) < STAGES.index("fused"):
                graph.stage = "fused"
            count = step.run(graph) if step.only_if(graph) else 0
            verify_graph(graph, phase.stage, self.verified)
        except InvalidOptionError:  # It tells of what the user asked for, not of the pass.
            raise
        except TensorwrightError as error:
            raise self.explain(step, error) from error
        self.last = count, time.perf_counter() - start
        self.done.append(step.name)
        self.report.counts[step.name] = self.report.counts.get(step.name, 0) + count
        self.report.seconds[step.name] = self.report.seconds.get(step.name, 0.0) + self.last[1]
        self.write_dump(step)
        self.check_expectation(step)
        self.compare(step)

    def compare_first(self) -> None:
        if self.comparison is not None:
            self.comparison.check(self.report.graph, "trace", lossy=False)

    def explain(self, step: Step, error: TensorwrightError) -> TensorwrightError:
        """Returns an error of the same kind that says where in the pipeline it happened."""
        before = f"after {', '.join(self.done)}" if self.done else "as the first pass"
        kind = PassError if type(error) is GraphError else type(error)
        return kind(f"pass {step.name} (number {len(self.done) + 1}, {before}) failed: {error}")

    def write_dump(self, step: Step) -> None:
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            (self.dump / f"{len(self.done):02d}_{step.name}.txt").write_text(print_graph(self.report.graph))

    def check_expectation(self, step: Step) -> None:
        """Raises PassError after a pass's last run if its total count is not the expected one."""
        if step.name not in self.expected or step.name in self.names[len(self.done) :]:
            return
        wanted, got = self.expected[step.name], self.report.counts[step.name]
        if wanted != got:
            raise PassError(
                f"pass {step.name} must rewrite {wanted} times in this model, and rewrote {got}; "
                f"closest match left: {explain_miss(step, self.report.graph)}"
            )

    def compare(self, step: Step) -> None:
        if self.comparison is not None:
            narrow = self.report.graph.facts.dtype != "float32"
            lossy = step.lossy == "always" or (step.lossy == "bfloat16" and narrow)
            difference = self.comparison.check(self.report.graph, step.name, lossy=lossy)
            self.report.differences[step.name] = max(self.report.differences.get(step.name, 0.0), difference)


def explain_miss(step: Step, graph: Graph) -> str:
    """Explains why the pass's PATTERN does not match (again) in `graph`."""
    module: Any = sys.modules[step.run.__module__]
    found = getattr(module, "PATTERN", None)
    return closest(graph, found, getattr(module, "check", None)) if isinstance(found, Pattern) else "none is known"
