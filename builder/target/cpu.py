"""Target cpu: plan.bin and weights.bin, measured by running them."""

from __future__ import annotations

from typing import Any

from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.engine_files import kv_block_bytes
from tensorwright.builder.emit.quantization_record import quantization_record
from tensorwright.builder.options import BuildOptions, Phases
from tensorwright.builder.target.interface import Emitted, Graphs
from tensorwright.engine_format.file_names import CPU_PLAN, CPU_WEIGHTS
from tensorwright.errors import InvalidOptionError
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.pipeline import PIPELINE, PassReport

__all__ = ["PIPELINE", "activation_dtype", "block_size", "check", "emit", "measure"]
BLOCK_SIZE = 32


def block_size(max_seq_len: int) -> int:
    """Positions in one block of the KV cache."""
    return BLOCK_SIZE


def check(options: BuildOptions) -> None:
    """Raises InvalidOptionError unless the activations are float32 or bfloat16."""
    dtypes = options.target_format.dtypes
    if options.dtype not in ("auto", *dtypes):
        raise InvalidOptionError(f"dtype must be auto, {' or '.join(dtypes)} on target cpu, not {options.dtype}")


def activation_dtype(options: BuildOptions, native: str) -> str:
    """bfloat16 checkpoints stay so, all others run in float32."""
    return "bfloat16" if native == "bfloat16" else "float32"


def emit(
    writer: EngineWriter, report: PassReport, checkpoint: Checkpoint, options: BuildOptions, phases: Phases
) -> Emitted:
    """Writes cpu/plan.bin and streams cpu/weights.bin."""
    facts = report.graph.facts
    with phases.run("plan"):
        plan = emit_cpu_plan(report.graph, checkpoint)
        writer.require_space(plan.weights.total_bytes + len(plan.data))
        writer.write(CPU_PLAN, plan.data)
    with phases.run("weights") as advance, writer.open(CPU_WEIGHTS) as file:
        plan.weights.stream(file, advance)
    return Emitted(
        quantization_record(report.graph, plan.weights),
        kv_block_bytes(facts["kv_layers"], facts["dtype"], facts["block_size"]),
    )


def measure(writer: EngineWriter, graphs: Graphs, checkpoint: Checkpoint, options: BuildOptions) -> dict[str, Any]:
    """The engine itself runs a text."""
    from tensorwright.builder.measure.accuracy import measure_accuracy

    weights = emit_cpu_plan(graphs.lowered, checkpoint).weights  # where each lies; a moment's work
    return measure_accuracy(
        options.accuracy, checkpoint, writer.directory / "cpu", graphs.traced, graphs.cached, weights
    )
