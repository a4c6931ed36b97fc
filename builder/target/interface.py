"""Defines the interface of a target's module, which is imported when an engine is built for the target.

A module has PIPELINE (the passes, in phases), block_size(max_seq_len), and

    check(options)                                        raises InvalidOptionError before any work
    activation_dtype(options, native)                     the meaning of dtype "auto" for a checkpoint of type `native`
    emit(writer, report, checkpoint, options, phases)     writes the target's files, returns Emitted
    measure(writer, graphs, checkpoint, task, options)    the accuracy record; not called for accuracy "none"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tensorwright.builder.emit.engine_dir import EngineWriter
    from tensorwright.builder.measure.accuracy import Measurement
    from tensorwright.builder.options import BuildOptions
    from tensorwright.builder.phases import Phases
    from tensorwright.ir.graph import Graph
    from tensorwright.models.checkpoint import Checkpoint
    from tensorwright.passes.pipeline import PassReport, Phase

MODULES = {
    "cpu": "tensorwright.builder.target.cpu",
    "onnx": "tensorwright.builder.target.onnx",
    "cuda": "tensorwright.builder.target.cuda",
    "tensorrt": "tensorwright.builder.target.tensorrt",
    "tensorrt-rtx": "tensorwright.builder.target.tensorrt",
}


@dataclass(frozen=True)
class Emitted:
    """The facts of a target's files: the quantization record, or None, and the bytes of one block of the KV cache.

    notes: entries of the build report. state_bytes: of one sequence; None means those of the whole model.
    """

    quantization: dict[str, Any] | None
    kv_block_bytes: int
    notes: dict[str, Any] = field(default_factory=dict)
    state_bytes: int | None = None


@dataclass(frozen=True)
class Graphs:
    """The graphs that an engine was made from: as traced, at stage "cached", and after the target's passes."""

    traced: Graph
    cached: Graph
    lowered: Graph


class Target(Protocol):
    """A target's module."""

    PIPELINE: tuple[Phase, ...]

    def block_size(self, max_seq_len: int) -> int: ...

    def check(self, options: BuildOptions) -> None: ...

    def activation_dtype(self, options: BuildOptions, native: str) -> str: ...

    def emit(
        self, writer: EngineWriter, report: PassReport, checkpoint: Checkpoint, options: BuildOptions, phases: Phases
    ) -> Emitted: ...

    def measure(
        self,
        writer: EngineWriter,
        graphs: Graphs,
        checkpoint: Checkpoint,
        task: Measurement,
        options: BuildOptions,
    ) -> dict[str, Any]: ...


def find_target(name: str) -> Target:
    """Returns the module of a target in `engine_format.targets.TARGETS`."""
    module: Any = import_module(MODULES[name])
    return module
