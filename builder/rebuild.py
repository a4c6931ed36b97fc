"""Builds an engine again, from an engine, for another target or in other formats: rebuild().

With kept weights (weights.safetensors) it starts from the engine's graph.txt and needs neither the checkpoint nor
transformers. Otherwise the checkpoint that the engine was made from must be given, and is built anew.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwright.builder.build import (
    BuildResult,
    BuildRun,
    build_engine_at,
    check_measured_text,
    choose_formats,
    emit_and_measure,
    measured_text,
    refuse_idle_patterns,
)
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.engine_files import source_record
from tensorwright.builder.graphs import ask_for_quantization
from tensorwright.builder.kept_weights import EngineSource
from tensorwright.builder.options import BuildOptions, named_place
from tensorwright.builder.phases import Phases, Progress
from tensorwright.builder.places import check_places
from tensorwright.builder.plain_graph import plain_graph
from tensorwright.builder.process import MemoryWatch
from tensorwright.builder.target.interface import find_target
from tensorwright.engine_format.engine_config import BUILT_IN_TEXT, EngineConfig
from tensorwright.engine_format.file_names import GRAPH, KEPT_WEIGHTS, TOKENIZER
from tensorwright.engine_format.strict_json import write_value
from tensorwright.engine_format.weight_formats import KEPT
from tensorwright.errors import CheckpointError, EngineError, GraphError, InvalidOptionError
from tensorwright.ir.graph import Graph
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.verify import verify
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.options.build import OF_EVERY_TARGET

if TYPE_CHECKING:
    from tensorwright.passes.pipeline import Phase


def rebuild(
    engine: Path,
    config: EngineConfig,
    out: str | Path,
    *,
    model: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    begin: float | None = None,
    **changes: Any,
) -> BuildResult:
    """Builds the engine in directory `engine` again at `out`. `config` is its config.json; its files were checked.

    model: the checkpoint that the engine was built from, if it keeps no weights. changes: options of `build` that are
    to differ (target, dtype, quantize, ...); the other options, and always max_seq_len, are the engine's. begin: see
    `build`.
    Raises EngineError, CheckpointError, and what `build` raises.
    """
    if config.pooling is not None:
        raise InvalidOptionError(
            f"{engine}: an engine of task {config.task} is not rebuilt; build it again from the checkpoint, with "
            f"build-engine --task {config.task}"
        )
    options = changed_options(config.build_options, changes)
    _require_text(config, options)
    _require_heads(engine, config, options, model)
    target = find_target(options.target)
    target.check(options)
    check_places(engine, out, None)
    if model is not None:
        _check_source(engine, config, model)
        if "quantize" in changes and options.asked_formats is None:
            options = replace(options, quantize="none")  # This decodes what a build would keep.
        return build_engine_at(model, out, options, overwrite=overwrite, progress=progress, begin=begin)
    if not (engine / KEPT_WEIGHTS).is_file():
        raise EngineError(
            f"{engine}: keeps no weights to build from; give the checkpoint that it was built from (--model), or build "
            "engines with --keep-weights"
        )
    if options.accuracy == "full":
        raise InvalidOptionError(
            "accuracy full compares with the model in transformers, which an engine does not hold; say quick, or give "
            "the checkpoint (--model)"
        )
    _refuse_decoded(config, options)
    text = measured_text(options)
    phases = Phases.since(begin, progress)
    with MemoryWatch() as memory, EngineWriter(out, overwrite=overwrite) as writer:
        with phases.run("open"):
            weights = EngineSource(engine)
            graph = read_graph(engine)
            refuse_idle_patterns(options, weights)
            check_measured_text(text, options, weights.tokenizer_files.get(TOKENIZER))
        return _from_graph(BuildRun(options, target, weights, writer, phases, memory, text), graph, config)


def _require_heads(engine: Path, config: EngineConfig, options: BuildOptions, model: str | Path | None) -> None:
    """Raises InvalidOptionError where the heads of an engine would be lost, or could not be built."""
    if options.heads is not None and model is None:
        raise InvalidOptionError("heads are built beside their model; give its checkpoint (--model) too")
    if config.heads is not None and options.heads is None and options.target == "cpu":
        raise InvalidOptionError(
            f"{engine}: has heads ({config.heads.kind}), which an engine does not keep apart; give them again "
            "(--heads), and the checkpoint (--model)"
        )


def changed_options(own: dict[str, Any], changes: dict[str, Any]) -> BuildOptions:
    """Returns the build options `own` of an engine with these changes. Raises InvalidOptionError.

    A change may leave an option of the engine without meaning, such as how accuracy was measured where it is not to be
    measured. The new engine does not have that option, unless the changes ask for it too.
    """
    names = [field.name for field in fields(BuildOptions)]
    unknown = sorted(set(changes) - set(names))
    if unknown:
        raise InvalidOptionError(f"rebuild: there is no option {', '.join(unknown)}; there are {', '.join(names)}")
    if "max_seq_len" in changes and changes["max_seq_len"] != own.get("max_seq_len"):
        raise InvalidOptionError("rebuild: max_seq_len is part of the graph; build from the checkpoint to change it")
    moved = changes.get("target", own.get("target")) != own.get("target")
    kept = {name: own[name] for name in own if name in names and (not moved or name in OF_EVERY_TARGET)}
    if changes.get("quantize_config") is not None:
        kept.pop("quantize", None)  # The file takes its place.
    chosen = {**kept, **changes}
    meaningless = ["accuracy_tokens"] if chosen.get("accuracy") == "none" else []
    plain = (
        chosen.get("quantize") is None
        and chosen.get("quantize_config") is None
        and chosen.get("sparsity", "none") == "none"
    )
    meaningless += ["calibrate", "activations"] if plain else []
    # A window, a budget and sparse prefill take each other's place.
    seen = ("attention_window", "kv_budget", "sparse_prefill")
    if any(changes.get(name) for name in seen):
        meaningless += [name for name in seen if not changes.get(name)]
    bounds = [name for name in ("attention_window", "kv_budget") if chosen.get(name) and name not in meaningless]
    meaningless += [] if bounds else ["sink_tokens"]
    meaningless += [] if "kv_budget" in bounds else ["recent_tokens"]
    for name in {*meaningless} - {*changes}:
        chosen.pop(name, None)
    if "sm" in chosen:
        chosen["sm"] = tuple(chosen["sm"])  # JSON has lists
    for name in ("accuracy_text", "calibration_text", "quantize_config"):
        chosen[name] = named_place(chosen.get(name))
    return BuildOptions(**chosen)


def _require_text(config: EngineConfig, options: BuildOptions) -> None:
    """Refuses to calibrate again on another text than the engine's, unless a text is given."""
    earlier = None if config.quantization is None else config.quantization.calibration
    if earlier is None or options.calibrate == "none" or options.calibration_text is not None:
        return
    if earlier.text != BUILT_IN_TEXT:
        raise InvalidOptionError(
            f"rebuild: the engine was calibrated on a text of its own ({earlier.text}), which it does not hold; give "
            "calibration_text, or say calibrate none"
        )


def _refuse_decoded(config: EngineConfig, options: BuildOptions) -> None:
    """Refuses to keep codes of a checkpoint, of which an engine holds the decoded weights."""
    spec = options.quantize_spec
    if config.quantization is not None and spec is not None and KEPT in spec.choices:
        raise InvalidOptionError(
            "rebuild: quantize kept needs the codes of the checkpoint, and the engine's kept weights are decoded; give "
            "the checkpoint (--model), or name formats (--quantize)"
        )


def _check_source(engine: Path, config: EngineConfig, model: str | Path) -> None:
    checkpoint = open_checkpoint(model)
    found, wanted = source_record(checkpoint), config.source
    if found.hash != wanted.hash:
        differing = sorted(
            name for name in {*found.files, *wanted.files} if found.files.get(name) != wanted.files.get(name)
        )
        raise CheckpointError(
            f"{checkpoint.path}: is not the checkpoint that {engine} was built from: {', '.join(differing)} differ; "
            "give that one, or build a new engine with build-engine"
        )


def _from_graph(run: BuildRun, graph: Graph, config: EngineConfig) -> BuildResult:
    """Builds from an engine's own graph and the weights that the engine keeps. config: that of this engine."""
    from tensorwright.passes.pipeline import run_pipeline

    phases = run.phases
    with phases.run("open"):
        reference = plain_graph(graph)
        pipeline, done = remaining(run, graph, config)
        if any(phase.name == "quantize" for phase in pipeline):
            chosen = graph.facts.quantize if same_formats(run, config) else None
            graph = plain_graph(graph)
            ask_for_quantization(graph.facts, run.options)
            graph.facts.quantize = chosen or graph.facts.quantize
        graph.facts.dtype = reference.facts.dtype = activation_dtype(run, config)
        graph.facts.block_size = run.target.block_size(graph.facts.max_seq_len)
    with phases.run("passes"):
        report = run_pipeline(graph, pipeline=pipeline, done=done, choose=partial(choose_formats, run))
    if same_formats(run, config) and config.quantization is not None and config.quantization.choice is not None:
        run.choices["choice"] = write_value(config.quantization.choice)
    return emit_and_measure(run, reference, report, config.source)


def read_graph(engine: Path) -> Graph:
    """Returns graph.txt, verified. Raises EngineError for one that this version cannot read."""
    try:
        graph = parse_graph((engine / GRAPH).read_text(encoding="utf-8"))
        verify(graph, "cached")
        graph.facts.require("dtype", "max_seq_len", "vocab_size", "kv_layers")
        graph.restart_names()
    except (GraphError, ValueError) as error:
        raise EngineError(
            f"{engine / GRAPH}: not a graph that this version builds from ({error}); build from the checkpoint"
        ) from error
    return graph


def same_formats(run: BuildRun, config: EngineConfig) -> bool:
    """Returns whether the options ask for formats as the engine's did, for the same target: a choice is then its."""
    own = config.build_options
    return (run.options.target, run.options.asked_formats) == (config.target, own.get("quantize"))


def remaining(run: BuildRun, graph: Graph, config: EngineConfig) -> tuple[tuple[Phase, ...], dict[str, int]]:
    """Returns the target's phases that still must run on the cached graph, and the counts of the earlier passes."""
    pipeline = run.target.PIPELINE
    asked = graph.facts.copy()
    ask_for_quantization(asked, run.options)
    if same_formats(run, config):
        asked.quantize = graph.facts.quantize
    # A calibration may leave some of the scales or columns out, and orders are those of the codes of one checkpoint.
    chooses = run.options.calibration.scales or run.options.calibration.outliers
    same = asked == graph.facts and not chooses and not asked.column_orders
    first = [phase.name for phase in pipeline].index("quantize") + (1 if same else 0)
    steps = [step.name for phase in pipeline[:first] for step in phase.steps]
    return pipeline[first:], {name: config.passes.get(name, 0) for name in dict.fromkeys(steps)}


def activation_dtype(run: BuildRun, config: EngineConfig) -> str:
    """Returns the engine's activation type if the target has it, else the type that the target chooses."""
    options = run.options
    if options.dtype != "auto":
        return options.dtype
    if config.dtype in options.target_format.dtypes:
        return config.dtype
    return run.target.activation_dtype(replace(options, dtype="auto"), config.dtype)
