"""Plans a model for target cpu without its weights: the graph after all passes, and the plan. Nothing is written.

A model is a checkpoint, or its config.json alone: a plan needs the shapes of the weights, and not their values.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tensorwright.builder.emit.cpu_plan import CpuPlan, emit_cpu_plan
from tensorwright.builder.graphs import import_tracing, rewrite_graph, trace_model
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases, Progress
from tensorwright.builder.target.interface import find_target
from tensorwright.engine_format.file_names import CONFIG
from tensorwright.engine_format.weight_formats import KEPT
from tensorwright.errors import CheckpointError, InvalidOptionError
from tensorwright.gguf_names import gguf_of
from tensorwright.hub import INDEX, WEIGHTS, download_config, is_hub_name
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.config_only import ConfigOnly
from tensorwright.passes.pipeline import PassReport


@dataclass(frozen=True)
class PlannedModel:
    """A model as target cpu would run it. traced: the graph before all passes. report: the graphs after them."""

    checkpoint: Checkpoint
    traced: Graph
    report: PassReport
    plan: CpuPlan


def open_model(model: str | Path, revision: str | None = None) -> Checkpoint:
    """Returns the checkpoint at `model`, or, where there are no weights, its config alone.

    model: a directory, a GGUF file, a config.json under any name that ends in .json, or a hub name, of which only the
    config is downloaded. Raises CheckpointError, InvalidOptionError and MissingDependencyError.
    """
    path = Path(os.path.expanduser(model))
    if path.is_file() and path.suffix == ".json":
        return ConfigOnly(path)
    if path.is_dir():
        has_weights = (path / WEIGHTS).is_file() or (path / INDEX).is_file() or gguf_of(path) is not None
        return open_checkpoint(path) if has_weights or not (path / CONFIG).is_file() else ConfigOnly(path / CONFIG)
    if not path.exists() and is_hub_name(str(model)):
        return ConfigOnly(download_config(str(model), revision))
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such file or directory; give a checkpoint directory, a GGUF file, a config.json, an engine or "
            "a hub name like org/name"
        )
    return open_checkpoint(path, revision)


def plan_model(
    checkpoint: Checkpoint, options: BuildOptions, progress: Progress | None = None, dump: Path | None = None
) -> PlannedModel:
    """Returns the plan of a model with these options, which must be of target cpu. dump: a folder that gets the graph
    after each pass.

    Raises what a build raises before it reads weights, and InvalidOptionError for formats that are chosen by the
    weights' values.
    """
    spec = options.quantize_spec
    if spec is not None and any(choice != KEPT for choice in spec.choices):
        raise InvalidOptionError(
            f"quantize={spec.summary!r} chooses formats by the weights' values, which are not read here; name "
            "the formats"
        )
    target, phases = find_target(options.target), Phases.since(None, progress)
    if isinstance(checkpoint, ConfigOnly):
        with phases.run("import"):
            import_tracing()
        from tensorwright.builder.trace.declare_tensors import declare_tensors

        with phases.run("model"):
            declare_tensors(checkpoint)
    graph, _ = trace_model(options, target, checkpoint, phases)
    report = rewrite_graph(graph, target, checkpoint, phases, dump=dump)
    with phases.run("plan"):
        plan = emit_cpu_plan(report.graph, checkpoint)
    return PlannedModel(checkpoint, graph, report, plan)
