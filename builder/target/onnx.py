"""Builds for target onnx: onnx/model.onnx with its weights beside it, and onnx/io.json; measured by ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases
from tensorwright.builder.target.interface import Emitted, Graphs
from tensorwright.engine_format.file_names import ONNX_DATA, ONNX_IO, ONNX_MODEL
from tensorwright.errors import InvalidOptionError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.pipeline import WEIGHT_ONLY_PIPELINE, PassReport

if TYPE_CHECKING:
    from tensorwright.builder.measure.accuracy import Measurement

__all__ = ["PIPELINE", "activation_dtype", "block_size", "check", "emit", "measure"]
PIPELINE = WEIGHT_ONLY_PIPELINE


def block_size(max_seq_len: int) -> int:
    """Returns max_seq_len: a sequence has one slot of the cache, for all its positions."""
    return max_seq_len


def check(options: BuildOptions) -> None:
    """Raises InvalidOptionError for what ONNX Runtime's kernels lack, MissingDependencyError without onnx."""
    if options.dtype == "bfloat16":
        raise InvalidOptionError(
            "dtype must be float32 or float16 on target onnx, not bfloat16: ONNX Runtime has no bfloat16 attention "
            "for processors; say --dtype float32, which holds every bfloat16 weight exactly"
        )
    _require("onnx", "writing an ONNX model")
    if options.accuracy != "none":
        _require("onnxruntime", "measuring its accuracy (--accuracy none leaves that out)")


def activation_dtype(options: BuildOptions, native: str) -> str:
    """Returns float32, in which every provider computes; it holds bfloat16 and float16 checkpoints exactly."""
    return "float32"


def emit(
    writer: EngineWriter, report: PassReport, checkpoint: Checkpoint, options: BuildOptions, phases: Phases
) -> Emitted:
    """Writes the model with streamed weights, and io.json. ONNX's checker reads them back."""
    from tensorwright.builder.emit.onnx.portable import emit_portable
    from tensorwright.builder.emit.onnx.portable_io import make_manifest
    from tensorwright.builder.emit.onnx.portable_model import OPSET

    facts = report.graph.facts
    with phases.run("plan"):
        emitter = emit_portable(report.graph, checkpoint, facts.dtype)
        text = emitter.model.serialized(ONNX_DATA.rpartition("/")[2])
        writer.require_space(emitter.model.total_bytes + len(text))
        writer.write(ONNX_MODEL, text)
        manifest = make_manifest(facts, facts.dtype, OPSET)
        writer.write_json(ONNX_IO, manifest.to_dict())
    with phases.run("weights") as advance, writer.open(ONNX_DATA) as file:
        emitter.model.write_data(file, advance)
    with phases.run("check"):
        import onnx

        onnx.checker.check_model(str(writer.directory / ONNX_MODEL))
    return Emitted(emitter.weights.record(report.graph), manifest.slot_bytes)


def measure(
    writer: EngineWriter, graphs: Graphs, checkpoint: Checkpoint, task: Measurement, options: BuildOptions
) -> dict[str, Any]:
    """Runs a text on the model itself, on ONNX Runtime's provider for processors."""
    from tensorwright.builder.emit.onnx.onnxruntime_logits import PROVIDER, ModelLogits
    from tensorwright.builder.measure.accuracy import measure_logits

    return measure_logits(
        task, checkpoint, graphs.traced, graphs.lowered, ModelLogits(writer.directory / ONNX_MODEL),
        measured_on=f"onnxruntime {PROVIDER}",
    )  # fmt: skip


def _require(package: str, what: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingDependencyError(f"{what} needs {package}, which is not installed: {install('onnx')}")
