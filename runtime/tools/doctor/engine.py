"""Checks whether an engine can run on this machine: runs every check of opening it, and reports all that fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from tensorwright.errors import TensorwrightError
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.executors import ONNX_PROVIDER, describe_engine
from tensorwright.runtime.requests.generation_defaults import sampling_defaults

Check = Callable[[], object]
NO_TOKENIZER = (
    "no tokenizer: it takes and gives token ids only (LLM, and Triton's token interface), and tensorwright serve "
    "refuses it; build it from a checkpoint with a tokenizer (a build without says why on standard error)"
)


def examine_engine(path: str) -> dict[str, Any]:
    """Returns the report of an engine: path, target, runs, facts, problems and warnings.

    runs: whether the engine can run here. problems: the type and the message of each error; the message has the remedy.
    warnings: texts about things that the engine cannot do because it lacks something.
    """
    try:
        engine = open_engine(path, read_tokenizer=True)
    except TensorwrightError as error:
        report: dict[str, Any] = {"facts": {}, "problems": [_problem(error)], "warnings": []}
        return {"path": path, "target": None, "runs": False, **report}
    problems = []
    of_all: list[Check] = [partial(sampling_defaults, engine, "model")]
    for check in chain(CHECKS[engine.target](engine), of_all):  # Later checks need the results of earlier ones.
        try:
            check()
        except TensorwrightError as error:
            problems.append(_problem(error))
    facts = {
        "dtype": engine.dtype,
        "max_seq_len": engine.max_seq_len,
        "built_by": engine.config.tensorwright_version,
    }
    with suppress(TensorwrightError):  # A check has reported this error.
        facts |= describe_engine(engine)
    report = {"facts": facts, "problems": problems, "warnings": [NO_TOKENIZER] if engine.tokenizer is None else []}
    return {"path": path, "target": engine.target, "runs": not problems, **report}


def _problem(error: TensorwrightError) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}


def _cpu_checks(engine: EngineDir) -> Iterator[Check]:
    from tensorwright.runtime.engine import native
    from tensorwright.runtime.engine.memory import default_kv_bytes

    yield native.dispatch_choices  # The compiled runtime loads, and has the set of TENSORWRIGHT_ISA.
    yield lambda: default_kv_bytes(engine, 1)
    if engine.config.ranks == 1:  # One rank of several does not run alone.
        yield lambda: native.create_executor(engine, 1)


def _onnx_checks(engine: EngineDir) -> Iterator[Check]:
    from tensorwright.runtime.engine.memory import default_kv_bytes
    from tensorwright.runtime.engine.onnx.executor import OnnxExecutor

    provider = os.environ.get(ONNX_PROVIDER, "cpu")
    yield lambda: default_kv_bytes(engine, 1)
    yield lambda: OnnxExecutor(engine, threads=1, provider=provider).close()


def _tensorrt_checks(engine: EngineDir) -> Iterator[Check]:
    from tensorwright.engine_format.tensorrt_manifest import Manifest
    from tensorwright.runtime.engine.tensorrt.cuda import Cuda, load_driver
    from tensorwright.runtime.engine.tensorrt.executor import check_ranks, plan_files, read_manifest
    from tensorwright.runtime.engine.tensorrt.library import check_device, check_version, load_bindings

    found: list[Manifest] = []
    yield lambda: found.append(read_manifest(engine))
    if not found:
        return  # Without the manifest there is nothing to compare this machine with.
    (manifest,), path = found, engine.path / plan_files(engine)[0]

    def ask_device() -> None:
        cuda = Cuda(load_driver(manifest.flavour))
        try:
            check_device(cuda, manifest, path)
        finally:
            cuda.close()

    yield lambda: check_version(load_bindings(manifest.flavour), manifest, path)
    yield ask_device
    if engine.config.ranks > 1:  # each needs a GPU, and all of them NCCL
        yield lambda: check_ranks(engine, tuple(range(engine.config.ranks)))


def _cuda_checks(engine: EngineDir) -> Iterator[Check]:
    from tensorwright.runtime.engine import native
    from tensorwright.runtime.engine.cuda.library import require_cublaslt

    found: list[dict[str, Any]] = []
    yield lambda: found.append(native.load_module().cuda_device(0))
    if found:
        from tensorwright.runtime.engine.cuda.executor import choose_sm

        yield lambda: choose_sm(engine, int(found[0]["sm"]), str(found[0]["name"]))
    yield require_cublaslt


CHECKS: dict[str, Callable[[EngineDir], Iterator[Check]]] = {
    "cpu": _cpu_checks,
    "onnx": _onnx_checks,
    "cuda": _cuda_checks,
    "tensorrt": _tensorrt_checks,
    "tensorrt-rtx": _tensorrt_checks,
}
"""The checks of each target."""
