"""Parses the ONNX file and builds the plan as a process, `python -m tensorwright.builder.emit.tensorrt.child`.

The library may abort, crash or use up all memory; in this process it does not harm the user's. job.py defines the
input and the answers. The process ends when its parent closes its stdin, or dies.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorwright.builder.emit.tensorrt.fixed_addresses import is_fixed
from tensorwright.builder.emit.tensorrt.job import Job, to_line
from tensorwright.builder.emit.tensorrt.library import FLAVOURS, require_version
from tensorwright.builder.emit.tensorrt.listeners import make_logger, make_monitor, without_noise
from tensorwright.errors import BuildError, InvalidOptionError, MissingDependencyError, TensorwrightError, reason
from tensorwright.installing import install
from tensorwright.plugins.gpu.build_context import building_for
from tensorwright.plugins.gpu.compile import cache_folder
from tensorwright.plugins.gpu.creators import register
from tensorwright.plugins.gpu.driver import CudaDriver

Send = Callable[[dict[str, Any]], None]


def main() -> None:
    """Runs one job from stdin and answers on the original stdout; the library's own prints go to stderr."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(message: dict[str, Any]) -> None:
        with lock:
            answers.write(to_line(message))

    job = Job.from_line(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        send({"done": build_plan(job, send)})
    except TensorwrightError as error:
        send({"failed": type(error).__name__, "text": str(error)})
    except MemoryError:
        text = "building the plan ran out of memory; free some, or build for fewer SMs"
        send({"failed": "OutOfMemoryError", "text": text})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # The library's destructors would wait for our threads, and have nothing to do.


def _die_with_parent() -> None:
    while sys.stdin.read(1):
        pass
    os._exit(1)


def build_plan(job: Job, send: Send) -> dict[str, Any]:
    """Parses the ONNX file, builds the plan and writes it. Returns the content of the message "done"."""
    flavour = FLAVOURS[job.flavour]
    try:
        trt = import_module(flavour.module)
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            f"the package {flavour.module} is installed and cannot be loaded ({reason(error)}): "
            f"{install(flavour.name, options='--force-reinstall')}"
        ) from error
    require_version(flavour, trt.__version__)
    begin, known = time.perf_counter(), _cached_kernels()
    with building_for(job.kernel_sms) as context:
        register(trt)
        plan = _run_builder(trt, job, send)
        kernel_bytes = context.bundle_bytes
    try:
        with Path(job.plan).open("wb") as file:
            file.write(memoryview(plan))
    except OSError as error:
        raise BuildError(
            f"the plan of {plan.nbytes / 1e6:.2f} MB cannot be written ({reason(error)}); nothing was left "
            "behind, free the disk or choose another place"
        ) from error
    return {
        "plan_bytes": plan.nbytes,
        "kernel_bytes": kernel_bytes,
        "seconds": round(time.perf_counter() - begin, 3),
        "library_version": trt.__version__,
        "fresh_kernels": len(_cached_kernels() - known),
        "fixed_addresses": is_fixed(),
    }


def _cached_kernels() -> set[str]:
    """Returns the files of the user's cache of compiled kernels."""
    folder = cache_folder()
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _run_builder(trt: Any, job: Job, send: Send) -> Any:
    """Returns the plan, in the library's memory."""
    log = make_logger(trt)
    try:
        builder = trt.Builder(log)
    except TypeError as error:  # the bindings raise a TypeError for a null pointer
        raise BuildError(f"TensorRT cannot start here: {log.account() or error}") from error
    network = builder.create_network(_strongly_typed(trt))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(job.model):
        raise BuildError(f"TensorRT's parser refused the ONNX model: {_parser_errors(parser) or log.account()}")
    config = _make_config(trt, builder, job)
    monitor = make_monitor(trt, lambda done, total: send({"progress": [done, total]}))
    config.progress_monitor = monitor
    log.errors.clear()
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BuildError(f"TensorRT could not build the engine: {log.account() or 'it gave no reason'}")
    if log.layers is not None:
        Path(job.layers).write_text(log.layers, encoding="utf-8")
    return plan


def _strongly_typed(trt: Any) -> int:
    """Returns the flags of the network. TensorRT 11 knows only strongly typed ones and may have no flag for it."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _make_config(trt: Any, builder: Any, job: Job) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    if FLAVOURS[job.flavour].any_sm:  # without it no CUDA graph can hold a step
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    _name_sms(trt, config, job)
    for shapes in job.profiles:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError("TensorRT refuses an optimization profile; its inputs are not those of the ONNX model")
    return config


def _name_sms(trt: Any, config: Any, job: Job) -> None:
    """Names the SMs to TensorRT for RTX, which builds for any SM; full TensorRT builds for the GPU that it finds."""
    if FLAVOURS[job.flavour].any_sm:
        if job.sms:
            config.num_compute_capabilities = len(job.sms)
        for index, sm in enumerate(job.sms):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), index)
        return
    here = CudaDriver().sm()
    if job.sms != (here,):
        raise InvalidOptionError(
            f"target {job.flavour} builds on the GPU that the engine is for: this one is SM {here}, and --sm says "
            f"{', '.join(map(str, job.sms)) or 'nothing'}; say --sm {here}, or build with target tensorrt-rtx"
        )


def _parser_errors(parser: Any) -> str:
    """Returns the errors, each with its node: "model.layers.0.mlp.down/MatMul (MatMul): ..."."""
    found = [parser.get_error(index) for index in range(parser.num_errors)]
    texts = (
        f"{e.node_name() or 'the model'} ({e.node_operator() or 'no op'}): {without_noise(e.desc())}" for e in found
    )
    return "; ".join(texts)


if __name__ == "__main__":
    main()
