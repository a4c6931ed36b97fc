"""The passes, in order, in phases: traced graph in, lowered graph with a memory plan out.

`run_pipeline` verifies the graph around every pass, counts rewrites, holds the counts against what is expected, and,
when asked, compares what the graph computes before and after each pass (`compare.py`) and dumps the graph after each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tensorwright.errors import GraphError, InvalidOptionError, PassError, TensorwrightError
from tensorwright.ir import Graph
from tensorwright.ir.ops import STAGES
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify as verify_graph
from tensorwright.passes.canonicalise_casts import canonicalise_casts
from tensorwright.passes.canonicalise_linears import canonicalise_linears
from tensorwright.passes.canonicalise_scalars import canonicalise_scalars
from tensorwright.passes.canonicalise_shapes import canonicalise_shapes
from tensorwright.passes.eliminate_dead_nodes import eliminate_dead_nodes
from tensorwright.passes.fold_constants import fold_constants
from tensorwright.passes.fuse_add_layer_norm import fuse_add_layer_norm
from tensorwright.passes.fuse_add_rms_norm import fuse_add_rms_norm
from tensorwright.passes.fuse_gate_up import fuse_gate_up
from tensorwright.passes.fuse_head_norms import fuse_head_norms
from tensorwright.passes.fuse_qkv import fuse_qkv
from tensorwright.passes.fuse_swiglu import fuse_swiglu
from tensorwright.passes.insert_kv_cache import insert_kv_cache
from tensorwright.passes.lower_to_cpu import lower_to_cpu
from tensorwright.passes.lower_weight_only import lower_weight_only
from tensorwright.passes.merge_common_subexpressions import merge_common_subexpressions
from tensorwright.passes.permute_rotary_rows import permute_rotary_rows
from tensorwright.passes.plan_memory import plan_memory
from tensorwright.passes.quantize_kv_cache import quantize_kv_cache
from tensorwright.passes.quantize_weights import quantize_weights
from tensorwright.passes.recognise_attention import recognise_attention
from tensorwright.passes.recognise_gelu import recognise_gelu
from tensorwright.passes.recognise_interleaved_rotary import recognise_interleaved_rotary
from tensorwright.passes.recognise_layer_norm import recognise_layer_norm
from tensorwright.passes.recognise_masks import recognise_masks
from tensorwright.passes.recognise_rms_norm import recognise_rms_norm
from tensorwright.passes.recognise_rotary import recognise_rotary
from tensorwright.passes.rewrite_gqa import rewrite_gqa
from tensorwright.passes.rewriting.compare import Comparison, Weights
from tensorwright.passes.rewriting.matcher import Pattern, closest
from tensorwright.passes.split_interleaved_linears import split_interleaved_linears
from tensorwright.passes.widen_activations import widen_activations


@dataclass(frozen=True)
class Step:
    """One pass and why it is here. `after`, `before`: names of passes of which one run must come earlier, later.

    `lossy`: when the numbers change by design, so that --verify reports the change instead of bounding it.
    """

    run: Callable[[Graph], int]
    why: str
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    lossy: Literal["never", "bfloat16", "always"] = "never"

    @property
    def name(self) -> str:
        return self.run.__name__


@dataclass(frozen=True)
class Phase:
    """Passes that leave the graph at `stage`; the first one may find it at the stage before."""

    name: str
    stage: str
    steps: tuple[Step, ...]


PIPELINE: tuple[Phase, ...] = (
    Phase("canonicalise", "traced", (
        Step(widen_activations, "one type for activations, so that every pattern is written once", lossy="bfloat16"),
        Step(canonicalise_casts, "widening leaves casts that change nothing", after=("widen_activations",)),
        Step(canonicalise_scalars, "squares, scales and shifts have one spelling"),
        Step(canonicalise_linears, "products with stored matrices are linears of [1, S, C]"),
        Step(canonicalise_shapes, "unsqueeze, squeeze and view are one op; no-ops are gone"),
        Step(fold_constants, "viewed frequencies and offsets become plain constants", after=("canonicalise_shapes",)),
        Step(merge_common_subexpressions, "patterns compare operands by identity; tied weights become one"),
        Step(eliminate_dead_nodes, "a dead user would make an inner value look shared"),
    )),
    Phase("recognise", "fused", (
        Step(recognise_rms_norm, "one op in place of five", after=("canonicalise_scalars",)),
        Step(recognise_gelu, "one op in place of eight", after=("canonicalise_scalars",)),
        Step(fuse_head_norms, "heads with a norm each are one row again", before=("fuse_qkv",)),
        Step(recognise_layer_norm, "a mean taken off before a norm", after=("recognise_rms_norm",)),
        Step(recognise_rotary, "needs constant frequencies", after=("fold_constants",)),
        Step(recognise_interleaved_rotary, "the kernels know halves, not neighbours", after=("fold_constants",)),
        Step(recognise_masks, "attention accepts only masks that were understood", before=("recognise_attention",)),
        Step(recognise_attention, "softmax between two matmuls", after=("recognise_masks",)),
        Step(canonicalise_shapes, "transposes of recognised ops meet and cancel", after=("recognise_attention",)),
        Step(rewrite_gqa, "repeated heads are only visible as operands of attention", after=("recognise_attention",)),
        Step(canonicalise_shapes, "the repeat is gone, its transposes cancel", after=("rewrite_gqa",)),
        Step(split_interleaved_linears, "what is left of slices of heads is q, k and v", after=("recognise_rotary",),
             before=("fuse_qkv",)),
        Step(canonicalise_shapes, "views and transposes meet again", after=("split_interleaved_linears",)),
        Step(merge_common_subexpressions, "every rotary made its own table", after=("recognise_rotary",)),
    )),
    Phase("fuse", "fused", (
        Step(permute_rotary_rows, "q and k must be plain linears to be fused", after=("rewrite_gqa",),
             before=("fuse_qkv",)),
        Step(fuse_qkv, "one matmul reads the input once", after=("rewrite_gqa",), before=("insert_kv_cache",)),
        Step(fuse_gate_up, "one matmul reads the input once", before=("fuse_swiglu",)),
        Step(fuse_swiglu, "the epilogue of the fused matmul", after=("fuse_gate_up",)),
        Step(fuse_add_rms_norm, "one pass over the residual stream", after=("recognise_rms_norm",)),
        Step(fuse_add_layer_norm, "the same, for families with that norm"),
    )),
    Phase("cache", "cached", (
        Step(insert_kv_cache, "from one sequence to a ragged batch", after=("fuse_qkv",)),
    )),
    Phase("quantize", "cached", (
        Step(quantize_weights, "what is rounded holds for any target", after=("insert_kv_cache",), lossy="always"),
        Step(quantize_kv_cache, "one layer, one type of cache", after=("insert_kv_cache",), lossy="always"),
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
"""For all targets but cpu. What their emitters take is at stage "cached"."""


@dataclass
class PassReport:
    """What `run_pipeline` did. Counts and times sum over all runs of a pass, in order of first run."""

    graph: Graph
    """As the last phase left it: the lowered graph with its memory plan, or what the target's emitter takes."""
    cached_graph: Graph
    """The target-independent graph, at stage "cached", before the last phase: what graph.txt holds."""
    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    """With verify: the largest change of a logit over each pass, lossy ones included."""


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
) -> PassReport:
    """Take a traced graph through all passes; `graph` itself stays as it is.

    verify: compare outputs before and after each pass on real inputs; needs `weights`, which gives the tensor of an
    expression. dump: a folder that gets NN_<pass>.txt after each pass. expectations: pass -> count. progress is called
    with (pass, count, seconds). done: passes that were run on it before, with their counts; `pipeline` is the rest.
    Raises PassError naming the pass, the passes before it and the node; LoweringError and UnsupportedModelError for
    models that cannot be built; InvalidOptionError.
    """
    if verify and weights is None:
        raise InvalidOptionError("verify needs weights: a function that gives the tensor of a weight expression")
    done = dict(done or {})
    check_order(pipeline, tuple(done))
    run = _Run(graph.clone(), pipeline, dict(expectations or {}), Comparison(weights) if verify and weights else None)
    run.dump = Path(dump) if dump is not None else None
    run.report.cached_graph, run.report.counts = graph, done
    for phase in pipeline:
        for i, step in enumerate(phase.steps):
            run.step(phase, step, first=i == 0)
            if progress is not None:
                progress(step.name, run.last[0], run.last[1])
        if phase.stage == "cached" and phase is not pipeline[-1]:
            run.report.graph.restart_names()
            run.report.cached_graph = run.report.graph.clone()
    return run.report


def check_order(pipeline: tuple[Phase, ...], done: tuple[str, ...] = ()) -> None:
    """Raise PassError if a pass stands before one it must follow. done: passes that were run before the first."""
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
    """One trip through the pipeline."""

    def __init__(
        self, graph: Graph, pipeline: tuple[Phase, ...], expected: dict[str, int], comparison: Comparison | None
    ):
        self.report = PassReport(graph, graph)
        self.names = [step.name for phase in pipeline for step in phase.steps]
        self.expected = expected
        self.comparison = comparison
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
                verify_graph(graph, graph.stage)
                self.compare_first()
            if first and phase.stage == "fused" and STAGES.index(graph.stage) < STAGES.index("fused"):
                graph.stage = "fused"
            count = step.run(graph)
            verify_graph(graph, phase.stage)
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
        """The same kind of error, saying where in the pipeline it happened."""
        before = f"after {', '.join(self.done)}" if self.done else "as the first pass"
        kind = PassError if type(error) is GraphError else type(error)
        return kind(f"pass {step.name} (number {len(self.done) + 1}, {before}) failed: {error}")

    def write_dump(self, step: Step) -> None:
        if self.dump is not None:
            self.dump.mkdir(parents=True, exist_ok=True)
            (self.dump / f"{len(self.done):02d}_{step.name}.txt").write_text(print_graph(self.report.graph))

    def check_expectation(self, step: Step) -> None:
        """After a pass's last run, its total must be what was expected."""
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
            narrow = self.report.graph.facts["dtype"] != "float32"
            lossy = step.lossy == "always" or (step.lossy == "bfloat16" and narrow)
            difference = self.comparison.check(self.report.graph, step.name, lossy=lossy)
            self.report.differences[step.name] = max(self.report.differences.get(step.name, 0.0), difference)


def explain_miss(step: Step, graph: Graph) -> str:
    """Why the pass's PATTERN does not match (again) in `graph`."""
    module: Any = sys.modules[step.run.__module__]
    found = getattr(module, "PATTERN", None)
    return closest(graph, found, getattr(module, "check", None)) if isinstance(found, Pattern) else "none is known"
