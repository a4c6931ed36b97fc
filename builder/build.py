"""build(): checkpoint -> engine directory. Trace, rewrite, emit, measure; then the directory appears, whole."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwright.builder.collector import paused_collector
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.emit.engine_dir import REPORT, EngineWriter
from tensorwright.builder.emit.engine_files import build_report, copy_text_side, engine_config, source_record
from tensorwright.builder.memory import MemoryWatch
from tensorwright.builder.options import BuildOptions, Phases, Progress
from tensorwright.builder.places import check_places, make_dump_folder
from tensorwright.builder.quantization_record import quantization_record
from tensorwright.errors import BuildError, CheckpointError, MissingDependencyError, NumericalError
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.registry import Quantized, expected_counts
from tensorwright.plugins.quantized_matmul.formats import parse_spec

if TYPE_CHECKING:
    from tensorwright.builder.emit.cpu_weights import WeightTable
    from tensorwright.builder.ir.graph import Graph
    from tensorwright.passes.pipeline import PassReport

BUILD_PACKAGES = ("torch", "transformers")
BLOCK_SIZE = 32
"""Positions in one block of the KV cache."""


@dataclass
class BuildResult:
    """A finished engine: where it is, its config.json and its build-report.json."""

    path: Path
    config: dict[str, Any]
    report: dict[str, Any]


def build(
    model: str | Path,
    out: str | Path,
    *,
    target: str = "cpu",
    dtype: str = "auto",
    max_seq_len: int | None = None,
    verify: bool = False,
    dump: str | Path | None = None,
    accuracy: str = "quick",
    quantize: str | None = None,
    kv_cache_dtype: str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Compiles a checkpoint (a directory, or a hub name like org/name) into an engine directory at `out`.

    dtype: "float32", "bfloat16", or "auto": the checkpoint's, float32 for float16. max_seq_len: prompt and answer
    together, by default the model's. verify: checks every pass against the graph before it. dump: a directory that
    gets the graph after each pass. accuracy: "none", "quick" (against the traced graph, streamed) or "full" (against
    transformers). quantize: formats of the weights, as in "int4", "int8:g64", "w8a8" or "int4:g64,lm_head=int8"
    (tensorwright.plugins.quantized_matmul.formats); None keeps them in the activation type.
    kv_cache_dtype: "auto", the activation type, or "int8", with a scale for each token and head. overwrite: replaces an
    engine at `out`.

    Raises InvalidOptionError, CheckpointError, UnsupportedModelError, PassError, LoweringError,
    MissingDependencyError, and BuildError if `out` exists or cannot be written. Whatever is raised, `out` is as it was;
    only an interrupt may come when the engine is there, whole.
    """
    options = BuildOptions(target, dtype, max_seq_len, accuracy, quantize, kv_cache_dtype)
    check_places(model, out, dump)
    graphs = None if dump is None else Path(os.path.expanduser(dump))
    phases = Phases(progress or (lambda phase, done, total: None))
    with MemoryWatch() as memory, EngineWriter(out, overwrite=overwrite) as writer:
        with phases.run("open"):
            checkpoint = open_checkpoint(model)
            if graphs is not None:
                make_dump_folder(graphs)
        graph = _trace(checkpoint, options, phases)
        report = _rewrite(graph, checkpoint, phases, verify=verify, dump=graphs)
        weights = _emit(writer, report, checkpoint, phases)
        measured = _measure(writer, graph, report.cached_graph, checkpoint, options, phases)
        records = {"accuracy": measured, "quantization": quantization_record(report.graph, weights)}
        return _finish(writer, report, checkpoint, options, records, phases, memory.peaks)


@paused_collector()
def _trace(checkpoint: Checkpoint, options: BuildOptions, phases: Phases) -> Graph:
    dtype, max_seq_len = options.dtype_for(checkpoint), options.max_seq_len_for(checkpoint)
    with phases.run("import"):
        # torch and transformers take seconds to import: what can fail without them has failed by now.
        try:
            from tensorwright.builder.trace import trace
        except ModuleNotFoundError as error:
            if error.name not in BUILD_PACKAGES:
                raise
            raise MissingDependencyError(
                f"building an engine needs {error.name}, which is not installed; pip install 'tensorwright[build]'"
            ) from error
    with phases.run("trace"):
        graph = trace(checkpoint, dtype=dtype, max_seq_len=max_seq_len)
    graph.facts["block_size"] = BLOCK_SIZE
    if options.kv_cache_dtype != "auto":
        graph.facts["kv_cache_dtype"] = options.kv_cache_dtype
    if options.quantize is not None:
        graph.facts["quantize"] = str(parse_spec(options.quantize))
    return graph


def _rewrite(graph: Graph, checkpoint: Checkpoint, phases: Phases, *, verify: bool, dump: Path | None) -> PassReport:
    from tensorwright.builder.emit.quantized_weights import QuantizingWeights
    from tensorwright.passes.pipeline import PIPELINE, run_pipeline

    steps = sum(len(phase.steps) for phase in PIPELINE)
    with phases.run("passes") as advance:
        done = 0

        def count_pass(name: str, rewrites: int, seconds: float) -> None:
            nonlocal done
            done += 1
            advance(done, steps)

        try:
            return run_pipeline(
                graph,
                target="cpu",
                verify=verify,
                weights=QuantizingWeights(checkpoint) if verify else None,
                dump=dump,
                expectations=expected_counts(checkpoint.config, _quantized(graph)),
                progress=count_pass,
            )
        except OSError as error:
            if dump is None:
                raise
            raise BuildError(f"{dump}: the graphs cannot be dumped there ({error.strerror}); choose another") from error


def _quantized(graph: Graph) -> Quantized:
    """Which matrices the build was asked to quantize."""
    spec = parse_spec(str(graph.facts.get("quantize", "none")))
    return Quantized(*(fmt is not None for fmt in (spec.linears, spec.embedding, spec.lm_head)))


def _emit(writer: EngineWriter, report: PassReport, checkpoint: Checkpoint, phases: Phases) -> WeightTable:
    """Writes everything but config.json; gives the weights as they were laid out and streamed."""
    from tensorwright.builder.ir.text import print_graph

    with phases.run("plan"):
        plan = emit_cpu_plan(report.graph, checkpoint)
        writer.require_space(plan.weights.total_bytes + len(plan.data))
        writer.write("graph.txt", print_graph(report.cached_graph).encode())
        writer.write("cpu/plan.bin", plan.data)
        copy_text_side(writer, checkpoint)
    with phases.run("weights") as advance, writer.open("cpu/weights.bin") as file:
        plan.weights.stream(file, advance)
    return plan.weights


def _measure(
    writer: EngineWriter, traced: Graph, cached: Graph, checkpoint: Checkpoint, options: BuildOptions, phases: Phases
) -> dict[str, Any] | None:
    if options.accuracy == "none":
        return None
    from tensorwright.builder.accuracy import measure_accuracy

    with phases.run("accuracy"):
        record = measure_accuracy(options.accuracy, checkpoint, writer.directory / "cpu", traced, cached)
    _require_numbers(record, checkpoint, traced.facts["dtype"])
    return record


def _require_numbers(record: dict[str, Any], checkpoint: Checkpoint, dtype: str) -> None:
    """Raises an error if logits came out as NaN or infinite, which a record shows as None."""
    if record["largest_reference_logit"] is None:
        raise CheckpointError(
            f"{checkpoint.path}: the model's logits are NaN or infinite, in float32 too: a weight or a number of "
            "config.json is out of range; correct it, or build with accuracy none to have the engine all the same"
        )
    if record["largest_logit_error"] is None:
        raise NumericalError(
            f"{checkpoint.path}: the engine's logits are NaN or infinite where the model's are not: {dtype} cannot "
            "hold its values; build with dtype float32"
        )


def _finish(
    writer: EngineWriter,
    report: PassReport,
    checkpoint: Checkpoint,
    options: BuildOptions,
    records: dict[str, dict[str, Any] | None],
    phases: Phases,
    memory: dict[str, int],
) -> BuildResult:
    facts = report.graph.facts
    with phases.run("checksums"):
        config = engine_config(
            target=options.target,
            facts=facts,
            build_options=asdict(options),
            passes=report.counts,
            records=records,
            source=source_record(checkpoint),
            sizes=writer.sizes,
        )
        writer.write_json("config.json", config)
    more = {"peak_memory_bytes": memory, "verify_differences": report.differences}
    notes = build_report(phases.seconds, report.seconds, more)
    writer.write_json(REPORT, notes)
    writer.commit()
    return BuildResult(writer.out, config, notes)
