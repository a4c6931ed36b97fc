"""Builds for target cpu: plan.bin and weights.bin, measured by running them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tensorwright.builder.calibrate.chosen_codes import ChosenCodes
from tensorwright.builder.emit.adapter_places import adapter_places
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.engine_files import group_block_bytes, kv_block_bytes
from tensorwright.builder.emit.quantization_record import matrices_of_plan, quantization_record
from tensorwright.builder.emit.ranks import WrittenRank, emit_ranks, share
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases
from tensorwright.builder.target.interface import Emitted, Graphs
from tensorwright.builder.text_file import read_calibration_text
from tensorwright.engine_format.file_names import CPU_ADAPTERS, CPU_PLAN, CPU_WEIGHTS, RANK_PLAN, RANK_WEIGHTS
from tensorwright.engine_format.kv_cache import CPU_BLOCK
from tensorwright.errors import InvalidOptionError
from tensorwright.ir import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.pipeline import PIPELINE, PassReport

if TYPE_CHECKING:
    from tensorwright.builder.measure.accuracy import Measurement

__all__ = ["PIPELINE", "activation_dtype", "block_size", "check", "emit", "measure"]


def block_size(max_seq_len: int) -> int:
    """Returns the positions in one block of the KV cache."""
    return CPU_BLOCK


def check(options: BuildOptions) -> None:
    """Raises InvalidOptionError unless the activations are float32 or bfloat16, and for a text that cannot be read."""
    dtypes = options.target_format.dtypes
    if options.dtype not in ("auto", *dtypes):
        raise InvalidOptionError(f"dtype must be auto, {' or '.join(dtypes)} on target cpu, not {options.dtype}")
    read_calibration_text(options.calibration_text)


def activation_dtype(options: BuildOptions, native: str) -> str:
    """Returns bfloat16 for bfloat16 checkpoints and float32 for all others."""
    return "bfloat16" if native == "bfloat16" else "float32"


def emit(
    writer: EngineWriter, report: PassReport, checkpoint: Checkpoint, options: BuildOptions, phases: Phases
) -> Emitted:
    """Writes cpu/plan.bin and cpu/adapters.json, and streams cpu/weights.bin, after the calibration that the options
    ask for."""
    if options.ranks > 1:
        graphs = share(report, checkpoint, options, phases, PIPELINE)
        return emit_ranks(writer, report, graphs, partial(_write_rank, writer, checkpoint, phases))
    with ChosenCodes(writer.directory) as codes:
        calibrated = _calibrate(writer, report, checkpoint, options, phases, codes)
        with phases.run("plan"):
            plan = emit_cpu_plan(report.graph, checkpoint)
            writer.require_space(plan.weights.total_bytes + len(plan.data))
            writer.write(CPU_PLAN, plan.data)
            writer.write(CPU_ADAPTERS, adapter_places(report.graph, checkpoint).to_text().encode())
        with phases.run("weights") as advance, writer.open(CPU_WEIGHTS) as file:
            plan.weights.stream(file, advance, codes)
    record = quantization_record(report.graph, plan.weights)
    if record is not None and calibrated is not None:
        record["calibration"] = calibrated
    return Emitted(record, kv_block_bytes(report.graph.facts))


def _write_rank(writer: EngineWriter, checkpoint: Checkpoint, phases: Phases, rank: int, lowered: Graph) -> WrittenRank:
    """Writes plan.bin and streams weights.bin of one rank of a parallel engine."""
    with phases.run("plan"):
        plan = emit_cpu_plan(lowered, checkpoint)
        writer.require_space(plan.weights.total_bytes + len(plan.data))
        writer.write(RANK_PLAN.format(rank), plan.data)
    with phases.run("weights") as advance, writer.open(RANK_WEIGHTS.format(rank)) as file:
        plan.weights.stream(file, advance)
    matrices = matrices_of_plan(lowered, plan.weights)
    return WrittenRank(matrices, group_block_bytes(lowered.facts), {"weights_bytes": plan.weights.total_bytes})


def _calibrate(
    writer: EngineWriter,
    report: PassReport,
    checkpoint: Checkpoint,
    options: BuildOptions,
    phases: Phases,
    codes: ChosenCodes,
) -> dict[str, Any] | None:
    """Chooses scales and codes; columns were chosen before the matrices were quantized. Scales that are all ones leave
    the graphs. Returns the record of the calibration, None if there is none."""
    if options.calibrate == "none":
        return None
    cached, gains = report.cached_graph, None
    with phases.run("calibrate"):
        from tensorwright.builder.calibrate.calibrate import calibrate, calibration_record  # imports torch
        from tensorwright.builder.calibrate.channel_scales import choose_scales, drop_ones, scales_record
        from tensorwright.builder.calibrate.sample import take_sample

        sample = take_sample(writer.directory, read_calibration_text(options.calibration_text), cached)
    if options.calibration.scales:
        with phases.run("calibrate scales") as advance:
            chosen = choose_scales(cached, checkpoint, sample, advance)
            gains = scales_record(cached, chosen)
            for graph in (cached, report.graph):
                drop_ones(graph, chosen)
    if options.calibration.codes or options.calibration.prunes:
        with phases.run("calibrate codes") as advance:
            calibrate(cached, checkpoint, sample, codes, advance, options.calibrate)
    return calibration_record(cached, options.calibrate, sample, gains)


def measure(
    writer: EngineWriter, graphs: Graphs, checkpoint: Checkpoint, task: Measurement, options: BuildOptions
) -> dict[str, Any]:
    """Runs a text on the engine itself, on all ranks of a parallel one."""
    from tensorwright.builder.measure.accuracy import measure_accuracy, measure_ranks

    if options.ranks > 1:
        return measure_ranks(task, checkpoint, writer.directory, options, graphs.traced, graphs.cached)
    weights = emit_cpu_plan(graphs.lowered, checkpoint).weights  # finds each weight's offset in a moment
    return measure_accuracy(task, checkpoint, writer.directory, graphs.traced, graphs.cached, weights)
