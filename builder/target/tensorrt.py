"""Builds for targets tensorrt and tensorrt-rtx: a TensorRT plan whose plugins carry their kernels, and its io manifest.

The graph becomes an ONNX model in the engine's folder. A separate process builds it into the plan; the model is
then removed. Nothing here needs a GPU for tensorrt-rtx; tensorrt builds on the GPU that the engine is for.
"""

from __future__ import annotations

import logging
import shutil
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.ranks import WrittenRank, emit_ranks, share
from tensorwright.builder.emit.step_limits import make_limits
from tensorwright.builder.emit.tensorrt.io_manifest import OnnxFacts, make_manifest, read_onnx, with_version
from tensorwright.builder.emit.tensorrt.job import Job
from tensorwright.builder.emit.tensorrt.layers import check_pages, check_plugins, count_kinds, parse_layers
from tensorwright.builder.emit.tensorrt.library import FLAVOURS, Library, find_library
from tensorwright.builder.emit.tensorrt.matrix import DEFAULT_KERNEL_SMS, check_pairs, check_sms
from tensorwright.builder.emit.tensorrt.profiles import input_shapes
from tensorwright.builder.emit.tensorrt.run_child import run_child
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases
from tensorwright.builder.target.interface import Emitted, Graphs
from tensorwright.engine_format.file_names import RANK_TENSORRT_ENGINE, RANK_TENSORRT_IO
from tensorwright.engine_format.targets import StepSizes
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, MANIFEST_FILE, Manifest
from tensorwright.errors import BuildError, InvalidOptionError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.ir import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.pipeline import WEIGHT_ONLY_PIPELINE, PassReport
from tensorwright.plugins.gpu.needs import FP8_CACHE

if TYPE_CHECKING:
    from tensorwright.builder.measure.accuracy import Measurement

__all__ = ["PIPELINE", "activation_dtype", "block_size", "check", "emit", "measure"]
PIPELINE = WEIGHT_ONLY_PIPELINE
BLOCK_SIZE = 32
MODEL, PLAN, LAYERS = "model.onnx", "plan", "layers.txt"
_log = logging.getLogger("tensorwright.build")


def block_size(max_seq_len: int) -> int:
    """Returns the positions in one block of the KV cache."""
    return BLOCK_SIZE


def check(options: BuildOptions) -> None:
    """Raises InvalidOptionError for pairs that no engine can have, MissingDependencyError for an absent package."""
    flavour = FLAVOURS[options.target]
    _step(options)
    families = sorted({fmt.family for fmt in options.quantize_spec.formats}) if options.quantize_spec else []
    if options.int4_kernel is not None and "int4" not in families:
        raise InvalidOptionError("int4_kernel says who multiplies int4 weights, and none are asked for; leave it out")
    if not flavour.any_sm and len(options.sm) != 1:
        raise InvalidOptionError(
            f"target {options.target} builds on the GPU that the engine is for: say the --sm of that one GPU, not "
            f"{len(options.sm)} of them; target tensorrt-rtx takes several, or none"
        )
    check_sms(options.sm, any_sm=flavour.any_sm)
    needs = [] if options.dtype == "auto" else [options.dtype]
    needs += [FP8_CACHE] if options.kv_cache_dtype == "fp8" else []
    check_pairs([*needs, *families], options.sm)
    find_library(flavour)
    _require("onnx", "a TensorRT engine is built from an ONNX model")
    _require("triton", "the kernels of a TensorRT engine's plugins are compiled by Triton")


def activation_dtype(options: BuildOptions, native: str) -> str:
    """Returns bfloat16 for bfloat16 checkpoints, else float16. Raises InvalidOptionError if an SM lacks the type."""
    dtype = "bfloat16" if native == "bfloat16" else "float16"
    check_pairs([dtype], options.sm)
    return dtype


def emit(
    writer: EngineWriter, report: PassReport, checkpoint: Checkpoint, options: BuildOptions, phases: Phases
) -> Emitted:
    """Writes tensorrt/rank0.engine and tensorrt/io.json, or both for each rank of a parallel engine. Facts of the
    plan's build go into the report."""
    library = find_library(FLAVOURS[options.target])
    if library.note is not None:
        _log.info("%s", library.note)
    write = partial(_write_engine, writer, checkpoint, options, phases, library)
    if options.ranks == 1:
        emitted, manifest, notes = write(report.graph, (ENGINE_FILE, MANIFEST_FILE))
        return Emitted(emitted["quantization"], sum(manifest.block_bytes), {"tensorrt": notes})
    graphs = share(report, checkpoint, options, phases, PIPELINE)
    _require_groups(report.cached_graph, [lowered for _, lowered in graphs])

    def write_rank(rank: int, lowered: Graph) -> WrittenRank:
        names = (RANK_TENSORRT_ENGINE.format(rank), RANK_TENSORRT_IO.format(rank))
        emitted, manifest, notes = write(lowered, names)
        return WrittenRank(emitted["matrices"], dict(enumerate(manifest.block_bytes)), notes)

    return emit_ranks(writer, report, graphs, write_rank)


def _require_groups(whole: Graph, ranks: list[Graph]) -> None:
    """Raises InvalidOptionError for a stage that has no layer of some cache group: its engine would lack the input."""
    groups = {layer.group for layer in whole.facts.kv_layers}
    for rank, graph in enumerate(ranks):
        missing = sorted(groups - {layer.group for layer in graph.facts.kv_layers})
        if missing:
            windows = {layer.group: layer.window for layer in whole.facts.kv_layers}
            kinds = " and ".join(f"window {windows[g]}" if windows[g] else "full attention" for g in missing)
            raise InvalidOptionError(
                f"pipeline_parallel: the stage of rank {rank} has no layer with a cache of {kinds}, and on target "
                "tensorrt every stage must have layers of each kind; say fewer stages, or share layers "
                "(tensor_parallel)"
            )


def _write_engine(
    writer: EngineWriter,
    checkpoint: Checkpoint,
    options: BuildOptions,
    phases: Phases,
    library: Library,
    graph: Graph,
    names: tuple[str, str],
) -> tuple[dict[str, Any], Manifest, dict[str, Any]]:
    """Writes a plan and its manifest, to the files `names`. Returns what the emitter of ONNX says, the manifest, and an
    entry of the report."""
    from tensorwright.builder.emit.onnx.plugin_form import emit_plugin_form

    facts = graph.facts
    work = writer.directory / ".work"
    work.mkdir()
    with phases.run("onnx"):
        int4 = "plugin" if options.int4_kernel == "plugin" else "native"
        with writer.os_errors("the ONNX model that the plan is made of cannot be written"):
            emitted = emit_plugin_form(graph, checkpoint, work, facts.dtype, int4=int4)
        onnx_facts = read_onnx(work / MODEL)
        model_bytes = sum(path.stat().st_size for path in work.iterdir())
        writer.require_space(model_bytes)
    batch, tokens = _step(options)
    sms = tuple(sorted(options.sm))
    manifest = make_manifest(
        facts, onnx_facts, flavour=options.target, sms=sms, kernel_sms=sms or DEFAULT_KERNEL_SMS, batch=batch,
        tokens=tokens,
    )  # fmt: skip
    notes = _build_plan(writer, work, manifest, library, phases, names)
    notes["layers"] = _check_layers(work / LAYERS, manifest, onnx_facts)
    shutil.rmtree(work)
    return emitted, manifest, {**notes, "onnx_bytes": model_bytes, "note": library.note}


def _build_plan(
    writer: EngineWriter, work: Path, manifest: Manifest, library: Library, phases: Phases, names: tuple[str, str]
) -> dict[str, Any]:
    """Writes both files of the engine; returns their entry in the report."""
    shapes = tuple(input_shapes(manifest.inputs, profile) for profile in manifest.profiles)
    job = Job(manifest.flavour, MODEL, PLAN, LAYERS, manifest.sms, manifest.kernel_sms, shapes)
    # The child must not be the first to write the files of compiled Python: see fixed_addresses.py.
    import_module("tensorwright.builder.emit.tensorrt.child")
    with phases.run("engine") as advance:
        done = run_child(job, library, advance, folder=work)
        if done["fresh_kernels"]:
            # A child that compiles kernels allocates later memory elsewhere (fixed_addresses.py). Now they are cached.
            done = run_child(job, library, advance, folder=work) | {"compiled_kernels": done["fresh_kernels"]}
    writer.adopt(names[0], work / PLAN)
    writer.write(names[1], with_version(manifest, done["library_version"]).to_json().encode())
    return done


def _check_layers(path: Path, manifest: Manifest, onnx_facts: OnnxFacts) -> dict[str, Any] | str:
    """Returns the kinds of layers in the engine. Raises BuildError if the engine would copy the KV cache."""
    if not path.exists():
        if FLAVOURS[manifest.flavour].any_sm:
            raise BuildError("TensorRT logged no list of layers, so nothing shows that the KV cache is not copied")
        return "not checked: this library logs no list of layers"
    layers = parse_layers(path.read_text(encoding="utf-8"))
    aliases = {tensor.alias: tensor.name for tensor in manifest.outputs if tensor.alias is not None}
    profiles = len(manifest.profiles)
    check_pages(layers, aliases, profiles)
    return {
        "kinds": count_kinds(layers),
        "plugins": check_plugins(layers, onnx_facts.plugin_nodes, profiles),
        "page_copies": 0,
    }


def measure(
    writer: EngineWriter, graphs: Graphs, checkpoint: Checkpoint, task: Measurement, options: BuildOptions
) -> dict[str, Any]:
    """Runs the lowered graph in the interpreter with the engine's rounding, for want of a GPU; the record says so."""
    from tensorwright.builder.measure.interpreter import measure_on_interpreter

    return measure_on_interpreter(graphs, checkpoint, task, graphs.lowered.facts.dtype, options.ranks)


def _step(options: BuildOptions) -> tuple[int, int]:
    """Returns (sequences, tokens) of the largest step."""
    usual = options.target_format.default_step or StepSizes(1, 1)
    return make_limits(options.max_batch_size, options.max_num_tokens, usual)


def _require(package: str, what: str) -> None:
    if find_spec(package) is None:
        raise MissingDependencyError(f"{what}, and {package} is not installed: {install('gpu')}")
