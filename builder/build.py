"""Builds an engine directory from a checkpoint: traces, rewrites, emits and measures, then puts it in place whole."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwright.builder.calibrate.kept_formats import choose_kept, choose_orders
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.engine_files import build_report, engine_config, source_record
from tensorwright.builder.emit.text_side import write_text_side
from tensorwright.builder.graphs import rewrite_graph, trace_model
from tensorwright.builder.heads import drop_features, join_heads, write_heads
from tensorwright.builder.kept_weights import write_kept_weights
from tensorwright.builder.measure.accuracy import Measurement, multiply_adds
from tensorwright.builder.measure.sample import (
    FULL_TOKENS,
    Extent,
    Sample,
    bundled_text,
    longest_window,
    quick_tokens,
    random_sample,
    require_tokens,
    text_sample,
)
from tensorwright.builder.options import BuildOptions, named_place
from tensorwright.builder.phases import Phases, Progress
from tensorwright.builder.places import check_places, make_dump_folder
from tensorwright.builder.pooling import choose_task
from tensorwright.builder.process import MemoryWatch
from tensorwright.builder.target.interface import Emitted, Graphs, Target, find_target
from tensorwright.builder.text_file import read_calibration_text
from tensorwright.engine_format.engine_config import EngineConfig, HeadsRecord, SourceRecord
from tensorwright.engine_format.file_names import CONFIG, GRAPH, REPORT, TOKENIZER
from tensorwright.engine_format.pooling import PoolingRecord
from tensorwright.engine_format.weight_formats import FLOAT16_SCALES, KEPT, QuantizeSpec, every_format
from tensorwright.errors import (
    CheckpointError,
    InvalidOptionError,
    NumericalError,
    TensorwrightWarning,
)
from tensorwright.ir.text import print_graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.heads_checkpoint import HeadsCheckpoint, open_heads_checkpoint
from tensorwright.options.build import OWN_HEADS
from tensorwright.options.text_file import NamedText, read_text_file

if TYPE_CHECKING:
    from tensorwright.builder.calibrate.sample import Sample as CalibrationSample
    from tensorwright.ir.graph import Graph
    from tensorwright.passes.pipeline import PassReport


@dataclass
class BuildResult:
    """A finished engine: where it is, its config.json and its build-report.json."""

    path: Path
    engine_config: EngineConfig
    report: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """Returns config.json as plain values."""
        return self.engine_config.to_dict()


def build(
    model: str | Path,
    out: str | Path,
    *,
    target: str = "cpu",
    dtype: str = "auto",
    task: str = "auto",
    pooling: str = "auto",
    max_seq_len: int | None = None,
    verify: bool = False,
    dump: str | Path | None = None,
    accuracy: str = "quick",
    accuracy_tokens: int | None = None,
    accuracy_text: str | Path | None = None,
    quantize: str | None = None,
    quantize_config: str | Path | None = None,
    sparsity: str = "none",
    kv_cache_dtype: str = "auto",
    attention_window: int | None = None,
    sink_tokens: int | None = None,
    kv_budget: int | None = None,
    recent_tokens: int | None = None,
    sparse_prefill: int | None = None,
    keep_weights: bool = False,
    calibrate: str = "none",
    calibration_text: str | Path | None = None,
    activations: str = "auto",
    sm: Sequence[int] = (),
    max_batch_size: int | None = None,
    max_num_tokens: int | None = None,
    int4_kernel: str | None = None,
    heads: str | Path | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    expert_parallel: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    begin: float | None = None,
) -> BuildResult:
    """Compiles a checkpoint (a directory, a GGUF file, or a hub name like org/name) into an engine directory at `out`.

    target: what the engine runs on: "cpu", "onnx", "cuda", "tensorrt" or "tensorrt-rtx". dtype: "float32", "bfloat16",
    "float16" (not on cpu) or their short names; with "auto" the target chooses by the checkpoint's type.
    task: "generate", "embed" (the engine gives the pooled hidden states of a text) or "rerank" (it says how well a
    document fits a query); "auto" takes what the checkpoint says. pooling: with task "embed", "last" or "mean"; "auto"
    takes what the checkpoint says, or "last" (docs/embeddings.md). Only for target cpu.
    max_seq_len: the most positions of prompt and answer together, by default as many as the model has. verify: checks
    every pass against the graph before it. dump: a directory that gets the graph after each pass. accuracy: "none",
    "quick" (against the traced graph, streamed) or "full" (against transformers). accuracy_tokens: the most tokens that
    it is measured over, in windows of up to 512; None means 8192 for "full", and for "quick" one window of 128 to 512
    by the size of the model. accuracy_text: a file of UTF-8 text to measure on; None means a text of this package.
    quantize: formats of the weights, as in "int4", "int8:g64", "w8a8" or "int4:g64,lm_head=int8"
    (tensorwright.engine_format.weight_formats); "mixed:4.5" chooses formats for so many bits per weight; None keeps
    the weights in the activation type, on target cpu a quantized checkpoint's in its codes ("kept"). quantize_config:
    a file of JSON that gives weights formats by patterns of their names (docs/quantization.md); "layers" there is what
    quantize says for all of them. sparsity: "none", or "2:4" (target cpu): two of each 4 neighbours along K of every
    matrix of the layers are kept.
    kv_cache_dtype: "auto", the activation type, "int8", with a scale for each token and head, "fp8" (E4M3) on
    targets of GPUs, with such a scale, or "int4" on target cpu, with a scale for each token and 64 dimensions of a
    head. keep_weights: the
    engine holds the checkpoint's tensors too (weights.safetensors), so that `tensorwright rebuild` can build the engine
    again for another target without the checkpoint. revision: with a hub name, the branch, tag or commit; None means
    the main branch. overwrite: replaces an engine at `out`. begin: the moment, of time.perf_counter, from which the
    report counts; the time before the call is the phase "start".

    For target cpu alone: attention_window: layers that attend to all positions see the last so many, and the first
    sink_tokens of a text (None means 4); None leaves attention as it is (docs/long-contexts.md). kv_budget: the KV
    cache keeps so many tokens of a sequence at every 128th, the first sink_tokens, the last recent_tokens (None means a
    quarter) and those that attention looked at most; not with attention_window.
    sparse_prefill: each 32 positions of a prompt see at most so many positions, a multiple of 32, which they choose by
    their scores; None lets them see all.
    calibrate: what a text chooses of quantized matrices: "none", codes ("gptq"), scales of input
    channels ("awq" or "smoothquant"), or both ("awq+gptq", "smoothquant+gptq"; docs/quantization.md).
    calibration_text: a file of UTF-8 text that a calibration runs through the model; None
    means a text of several kinds that Tensorwright brings along. heads: EAGLE-3 or Medusa heads trained for the model,
    a directory or a hub name, or "mtp", the checkpoint's own layer that predicts further tokens; the engine can propose
    tokens to itself with them (docs/speculation.md). expert_parallel: each rank of a stage has some of the experts of a
    layer whole, where it would have a part of every expert.
    For target cpu and the TensorRT targets: tensor_parallel, pipeline_parallel: how many ranks share every layer, and
    how many stages share the layers; the engine runs in so many processes (docs/ranks.md).
    For target onnx alone: activations: "auto", or "int8": products with int4 and int8 weights round their activations
    too, as target cpu always does. For target cuda and the TensorRT targets: sm: compute capabilities, such as 80
    and 90; () means the target's default; max_batch_size and max_num_tokens: the most sequences and tokens of a step
    (docs/cuda.md, docs/tensorrt.md). For the TensorRT targets alone: int4_kernel: "tensorrt" or "plugin".

    Raises InvalidOptionError, CheckpointError, UnsupportedModelError, PassError, LoweringError,
    MissingDependencyError, OutputExistsError if `out` exists, and BuildError if it cannot be written. After an error
    `out` is as it was before; only an interrupt may be raised when the whole engine is already at `out`.
    """
    options = BuildOptions(
        target=target,
        dtype=dtype,
        task=task,
        pooling=pooling,
        max_seq_len=max_seq_len,
        accuracy=accuracy,
        accuracy_tokens=accuracy_tokens,
        accuracy_text=named_place(accuracy_text),
        quantize=quantize,
        quantize_config=named_place(quantize_config),
        sparsity=sparsity,
        kv_cache_dtype=kv_cache_dtype,
        attention_window=attention_window,
        sink_tokens=sink_tokens,
        kv_budget=kv_budget,
        recent_tokens=recent_tokens,
        sparse_prefill=sparse_prefill,
        keep_weights=keep_weights,
        calibrate=calibrate,
        calibration_text=named_place(calibration_text),
        activations=activations,
        sm=tuple(sm) if isinstance(sm, Sequence) else sm,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        int4_kernel=int4_kernel,
        heads=named_place(heads),
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        expert_parallel=expert_parallel,
    )
    return build_engine_at(
        model, out, options, revision=revision, verify=verify, dump=dump, overwrite=overwrite, progress=progress,
        begin=begin,
    )  # fmt: skip


def build_engine_at(
    model: str | Path,
    out: str | Path,
    options: BuildOptions,
    *,
    revision: str | None = None,
    verify: bool = False,
    dump: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    begin: float | None = None,
) -> BuildResult:
    """Does what `build` does, with all options in one object."""
    phases = Phases.since(begin, progress)
    target = find_target(options.target)
    target.check(options)
    check_places(model, out, dump)
    text = measured_text(options)
    graphs = None if dump is None else Path(os.path.expanduser(dump))
    with MemoryWatch() as memory, EngineWriter(out, overwrite=overwrite) as writer:
        with phases.run("open"):
            checkpoint = open_checkpoint(model, revision)
            if (tokenizer := checkpoint.tokenizer_files.get(TOKENIZER)) is not None:
                check_measured_text(text, options, tokenizer)
            options, pooling = choose_task(options, checkpoint)
            options = with_kept_codes(options, checkpoint)
            refuse_idle_patterns(options, checkpoint)
            if graphs is not None:
                make_dump_folder(graphs)
            heads = None if options.heads in (None, OWN_HEADS) else open_heads_checkpoint(options.heads)
            checkpoint.heads = None if heads is None else heads.stored
        run = BuildRun(options, target, checkpoint, writer, phases, memory, text, heads, pooling)
        graph, traced_heads = trace_model(options, target, checkpoint, phases, heads)
        report = rewrite_graph(
            graph, target, checkpoint, phases,
            verify=verify, dump=graphs, heads=traced_heads, choose=partial(choose_formats, run),
        )  # fmt: skip
        if traced_heads is not None:
            with phases.run("passes"):
                join_heads(traced_heads, report, checkpoint, pipeline=target.PIPELINE, verify=verify)
                drop_features(graph)
        with phases.run("source"):
            source = source_record(checkpoint)
            record = None
            if traced_heads is not None:
                record = write_heads(writer, traced_heads, heads, graph.facts.vocab_size, options.target)
        return emit_and_measure(run, graph, report, source, record)


@dataclass(frozen=True)
class BuildRun:
    """The objects that every step of one build works with."""

    options: BuildOptions
    target: Target
    checkpoint: Checkpoint
    """The checkpoint that weights and tokenizer are read from; for a rebuild, the engine that keeps the weights."""
    writer: EngineWriter
    phases: Phases
    memory: MemoryWatch
    text: NamedText
    """The text that accuracy is measured on."""
    heads_checkpoint: HeadsCheckpoint | None = None
    """The heads that are built beside the model."""
    pooling: PoolingRecord | None = None
    """What the engine makes of a prompt's rows, if it draws no tokens."""
    choices: dict[str, Any] = field(default_factory=dict)
    """How formats were chosen, as config.json has it; {} if the options name them all."""

    @cached_property
    def tokenizer_notes(self) -> dict[str, Any]:
        """The entry of build-report.json. The first look at it writes the tokenizer and its files."""
        with self.phases.run("tokenizer"):
            notes = write_text_side(self.writer, self.checkpoint)
            check_measured_text(self.text, self.options, _tokenizer(self))
        return notes


def with_kept_codes(options: BuildOptions, checkpoint: Checkpoint) -> BuildOptions:
    """Returns the options of a build of a checkpoint. A quantized one keeps its codes on target cpu, unless the options
    name formats."""
    quantized = checkpoint.quantization is not None and len(checkpoint.quantization.matrices) > 0
    if not quantized or options.target != "cpu" or options.asked_formats is not None:
        return options
    return replace(options, quantize=str(KEPT))


def refuse_idle_patterns(options: BuildOptions, checkpoint: Checkpoint) -> None:
    """Raises InvalidOptionError for patterns of `quantize` that match no tensor of the checkpoint."""
    spec = options.quantize_spec
    if spec is None or not spec.rules:
        return
    names = checkpoint.names
    if idle := spec.table.idle(names):
        raise InvalidOptionError(
            f"quantize: no weight of {checkpoint.path} has a name like {', '.join(idle[:5])}; names are such as "
            f"{', '.join(sorted(names)[:3])}"
        )


def measured_text(options: BuildOptions) -> NamedText:
    """Returns the text that the options name, or that of this package. Raises InvalidOptionError."""
    return bundled_text() if options.accuracy_text is None else read_text_file("accuracy_text", options.accuracy_text)


def check_measured_text(text: NamedText, options: BuildOptions, tokenizer: Path | None) -> None:
    """Raises InvalidOptionError if the text has fewer tokens than the options ask for, or if there is no tokenizer to
    read a user's text with."""
    if options.accuracy == "none":
        return
    if tokenizer is not None:
        # A shorter text would not show what attention loses.
        require_tokens(text, tokenizer, options.accuracy_tokens or 1 + (options.seen_positions or 1))
    elif options.accuracy_text is not None:
        raise InvalidOptionError("accuracy_text: the model has no tokenizer, so it is measured on random tokens alone")


def emit_and_measure(
    run: BuildRun, traced: Graph, report: PassReport, source: SourceRecord, heads: HeadsRecord | None = None
) -> BuildResult:
    """Writes all files of the engine from its graphs, and puts it in place. source, heads: records for config.json."""
    writer, checkpoint, phases = run.writer, run.checkpoint, run.phases
    tokenizer = run.tokenizer_notes
    emitted = run.target.emit(writer, report, checkpoint, run.options, phases)
    writer.write(GRAPH, print_graph(report.cached_graph).encode())
    if run.options.keep_weights:
        with phases.run("keep") as advance:
            write_kept_weights(writer, report.cached_graph, checkpoint, advance)
    measured = _measure(run, Graphs(traced, report.cached_graph, report.graph))
    notes = {"peak_memory_bytes": run.memory.peaks, "tokenizer": tokenizer}
    return _finish(run, report, source, heads, emitted, measured, notes)


def choose_formats(run: BuildRun, cached: Graph) -> None:
    """Puts formats in place of the choices that the fact "quantize" of a cached graph leaves to the build, and says of
    which products the inputs must be in another order for the codes of a quantized checkpoint, and which columns they
    keep, where the options ask for such."""
    if cached.facts.quantize is not None and cached.facts.quantize.choices:
        _fill_in_formats(run, cached, cached.facts.quantize)
    spec = cached.facts.quantize
    if spec is not None and run.options.target == "cpu" and run.options.calibrate == "none":
        cached.facts.column_orders = choose_orders(cached, run.checkpoint, spec)
    if spec is not None and run.options.calibration.outliers:
        _choose_outlier_columns(run, cached, spec)


def _fill_in_formats(run: BuildRun, cached: Graph, spec: QuantizeSpec) -> None:
    run.phases.mark("passes")
    offered = run.options.target_format.weight_formats
    if any(choice.bits is not None for choice in spec.choices):
        _ = run.tokenizer_notes  # The sample is read with the engine's tokenizer.
        with run.phases.run("formats") as advance:
            from tensorwright.builder.calibrate.mixed import choose_mixed  # imports torch

            sample = _calibration_sample(run, cached)
            spec, run.choices["choice"] = choose_mixed(
                cached, run.checkpoint, spec, every_format(offered), sample, advance
            )
    if spec.choices:
        with run.phases.run("formats") as advance:
            formats = every_format(offered, ("", FLOAT16_SCALES))
            spec, run.choices["choice"] = choose_kept(cached, run.checkpoint, spec, formats, advance)
        _tell_of_decoded(run.checkpoint, run.choices["choice"]["decoded"])
    cached.facts.quantize = spec if spec.formats else None


def _choose_outlier_columns(run: BuildRun, cached: Graph, spec: QuantizeSpec) -> None:
    run.phases.mark("passes")
    _ = run.tokenizer_notes
    with run.phases.run("calibrate columns") as advance:
        from tensorwright.builder.calibrate.outlier_columns import choose_columns  # imports torch

        sample = _calibration_sample(run, cached)
        cached.facts.outlier_columns = choose_columns(cached, run.checkpoint, spec, sample, advance)


def _calibration_sample(run: BuildRun, cached: Graph) -> CalibrationSample:
    """Returns the tokens of the text that the options name. The engine's tokenizer must have been written."""
    from tensorwright.builder.calibrate.sample import take_sample

    return take_sample(run.writer.directory, read_calibration_text(run.options.calibration_text), cached)


def _tell_of_decoded(checkpoint: Checkpoint, names: list[str]) -> None:
    if names:
        warnings.warn(
            f"{checkpoint.path}: {len(names)} quantized matrices are decoded, for no format of target cpu holds "
            f"their codes as they are: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}",
            TensorwrightWarning,
            stacklevel=2,
        )


def _measure(run: BuildRun, graphs: Graphs) -> dict[str, Any] | None:
    """Returns the accuracy record, None if it is not asked for. Raises CheckpointError and NumericalError for NaN."""
    if run.options.accuracy == "none":
        return None
    with run.phases.run("accuracy") as advance:
        task = Measurement(run.options.accuracy, _sample(run, graphs), advance)
        record = run.target.measure(run.writer, graphs, run.checkpoint, task, run.options)
    _require_numbers(record, run.checkpoint, graphs.traced.facts.dtype)
    return record


def _sample(run: BuildRun, graphs: Graphs) -> Sample:
    """Returns what accuracy is measured on. Without a tokenizer that is random tokens."""
    facts, options = graphs.traced.facts, run.options
    longest = min(facts.max_seq_len, longest_window(options.seen_positions))
    if options.accuracy_tokens is not None:
        most = options.accuracy_tokens
    elif options.accuracy == "full":
        most = FULL_TOKENS
    elif options.seen_positions is not None:
        most = longest
    else:
        most = min(longest, quick_tokens(multiply_adds(graphs.cached)))
    extent = Extent(most, longest)
    if (tokenizer := _tokenizer(run)) is None:
        return random_sample(extent, facts.vocab_size)
    return text_sample(run.text, tokenizer, extent, facts.vocab_size)


def _tokenizer(run: BuildRun) -> Path | None:
    """Returns the checkpoint's tokenizer.json, or that which the engine got in its place, if there is one."""
    made = run.writer.directory / TOKENIZER
    return run.checkpoint.tokenizer_files.get(TOKENIZER) or (made if made.is_file() else None)


def _require_numbers(record: dict[str, Any], checkpoint: Checkpoint, dtype: str) -> None:
    """Raises an error if logits came out as NaN or infinite, which a record shows as None."""
    rows = "hidden_state" if record.get("largest_reference_hidden_state", ...) is not ... else "logit"
    what = rows.replace("_", " ") + "s"
    if record[f"largest_reference_{rows}"] is None:
        raise CheckpointError(
            f"{checkpoint.path}: the model's {what} are NaN or infinite, in float32 too: a weight or a number of "
            "config.json is out of range; correct it, or build with accuracy none to have the engine all the same"
        )
    if record[f"largest_{rows}_error"] is None:
        raise NumericalError(
            f"{checkpoint.path}: the engine's {what} are NaN or infinite where the model's are not: {dtype} cannot "
            "hold its values; build with dtype float32"
        )


def _finish(
    run: BuildRun,
    report: PassReport,
    source: SourceRecord,
    heads: HeadsRecord | None,
    emitted: Emitted,
    measured: dict[str, Any] | None,
    notes: dict[str, Any],
) -> BuildResult:
    """Writes config.json and the report, and puts the engine in place. notes: further entries of the report."""
    writer, facts = run.writer, report.graph.facts
    with run.phases.run("checksums"):
        config = engine_config(
            facts,
            options=run.options,
            passes=report.counts,
            accuracy=measured,
            quantization=None if emitted.quantization is None else {**emitted.quantization, **run.choices},
            kv_block_bytes=emitted.kv_block_bytes,
            states=emitted.state_bytes,
            source=source,
            sizes=writer.sizes,
            heads=heads,
            pooling=run.pooling,
        )
        writer.write(CONFIG, config.to_json().encode())
    size = sum(writer.sizes.values())
    more = {"engine_bytes": size, **notes, "verify_differences": report.differences, **emitted.notes}
    written = build_report(run.phases, report.seconds, more)
    writer.write_json(REPORT, written)
    writer.commit()
    return BuildResult(writer.out, config, written)
