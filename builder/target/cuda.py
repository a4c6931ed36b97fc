"""Builds for target cuda: for each SM a plan of our own kernels and cuBLASLt's products, and one file of weights.

Triton compiles the kernels at build time, and no GPU is needed for it. An engine runs without Triton, without TensorRT.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.step_limits import PROPOSED_ROWS, make_limits, max_rows
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases
from tensorwright.builder.target.interface import Emitted, Graphs
from tensorwright.engine_format.file_names import CUDA_PLAN, CUDA_WEIGHTS
from tensorwright.engine_format.targets import StepSizes
from tensorwright.errors import MissingDependencyError
from tensorwright.installing import install
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.pipeline import CUDA_PIPELINE, PassReport
from tensorwright.passes.rewriting.join_draft_heads import model_of
from tensorwright.plugins.gpu.needs import FP8_CACHE, OUR_NEEDS, check_needs, check_sms

if TYPE_CHECKING:
    from tensorwright.builder.measure.accuracy import Measurement

__all__ = ["PIPELINE", "activation_dtype", "block_size", "check", "emit", "measure"]
PIPELINE = CUDA_PIPELINE
BLOCK_SIZE = 32


def block_size(max_seq_len: int) -> int:
    """Returns the positions in one block of the KV cache."""
    return BLOCK_SIZE


def check(options: BuildOptions) -> None:
    """Raises InvalidOptionError for what no engine can have, MissingDependencyError without Triton."""
    _step(options)
    check_sms(options.sm)
    caches = [FP8_CACHE] if options.kv_cache_dtype == "fp8" else []
    _check_needs([options.dtype, *caches], options.sm)
    if find_spec("triton") is None:
        raise MissingDependencyError(
            f"the kernels of target cuda are compiled by Triton, and triton is not installed: {install('gpu')}"
        )


def activation_dtype(options: BuildOptions, native: str) -> str:
    """Returns bfloat16 for bfloat16 checkpoints, else float16. Raises InvalidOptionError if an SM lacks the type."""
    dtype = "bfloat16" if native == "bfloat16" else "float16"
    _check_needs([dtype], options.sm)
    return dtype


def emit(
    writer: EngineWriter, report: PassReport, checkpoint: Checkpoint, options: BuildOptions, phases: Phases
) -> Emitted:
    """Writes cuda/sm_<SM>.plan for each SM, and cuda/weights.bin."""
    from tensorwright.builder.emit.cuda.emit import plan_graph
    from tensorwright.builder.emit.cuda.plan_file import to_bytes

    with phases.run("plan"):
        planned = plan_graph(report.graph, checkpoint, report.graph.facts.dtype, _max_step(options))
        traced = {sm: planned.traced(sm) for sm in sorted(options.sm)}
    notes: dict[str, Any] = {}
    with phases.run("kernels") as advance:
        total, done = sum(len(planner.specs) for planner, _ in traced.values()), 0
        for sm, (planner, instructions) in traced.items():
            before = done

            def count(compiled: int, of: int, before: int = before) -> None:
                advance(before + compiled, total)

            kernels = planner.compiled(count)
            done += len(kernels)
            writer.write(CUDA_PLAN.format(sm), to_bytes(planned.plan(sm, instructions, kernels)))
            notes[str(sm)] = {"kernels": len(kernels), "instructions": len(instructions)}
    writer.require_space(planned.emitter.file.total_bytes)
    with phases.run("weights") as advance, writer.open(CUDA_WEIGHTS) as file:
        planned.emitter.file.write(file, advance)
    return Emitted(planned.record, planned.block_bytes, {"cuda": notes})


def measure(
    writer: EngineWriter, graphs: Graphs, checkpoint: Checkpoint, task: Measurement, options: BuildOptions
) -> dict[str, Any]:
    """Runs the lowered graph in the interpreter with the engine's rounding, for want of a GPU; the record says so."""
    from tensorwright.builder.measure.interpreter import measure_on_interpreter

    lowered = graphs.lowered if options.heads is None else model_of(graphs.lowered)
    return measure_on_interpreter(replace(graphs, lowered=lowered), checkpoint, task, lowered.facts.dtype)


def _step(options: BuildOptions) -> tuple[int, int]:
    """Returns (sequences, tokens) of the largest step."""
    usual = options.target_format.default_step or StepSizes(1, 1)
    return make_limits(options.max_batch_size, options.max_num_tokens, usual)


def _max_step(options: BuildOptions) -> tuple[int, int, int]:
    """Returns the most tokens, rows of logits and sequences of a step."""
    seqs, tokens = _step(options)
    return tokens, max_rows(seqs, tokens, PROPOSED_ROWS), seqs


def _check_needs(asked: list[str], sms: tuple[int, ...]) -> None:
    """Raises InvalidOptionError for a type or cache that an SM lacks. What has no need, every SM has."""
    check_needs(OUR_NEEDS, [name for name in asked if name in OUR_NEEDS], sms)
