"""Who runs the steps of an engine that the C++ core does not run itself, and what an engine's target says of options.

Engines of target cpu run in the C++ core. The others have an executor written in Python, which the C++ engine drives:
an object with facts, allocate, run, copy_block and close (runtime/bindings/python_executor.h), and
kv_cache_bytes(asked, max_batch_size=, max_num_tokens=, max_rows=), the bytes of its cache. An executor's packages are
imported when an engine is opened to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.targets import TARGETS
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.base.host import choose_threads
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import DEFAULT_LIMITS, EngineOptions, RuntimeOptions

ONNX_PROVIDER = "TENSORWRIGHT_ONNX_PROVIDER"
"""The name of an environment variable: "cuda" or "cpu", which is the default."""


@dataclass(frozen=True)
class ExecutorKind:
    """The executors of one target.

    open: makes one, with the engine and its number of threads. describe: what an engine's own files say of it.
    read_limits: the max_batch_size and max_num_tokens that an engine was built for, {} where a target has no limits.
    """

    open: Callable[[EngineDir, int], Any]
    describe: Callable[[EngineDir], dict[str, Any]] = lambda engine: {}
    read_limits: Callable[[EngineDir], dict[str, int]] = lambda engine: {}


def _open_onnx(engine: EngineDir, threads: int) -> Any:
    from tensorwright.runtime.engine.onnx.executor import OnnxExecutor

    return OnnxExecutor(engine, threads=threads, provider=os.environ.get(ONNX_PROVIDER, "cpu"))


def _open_tensorrt(engine: EngineDir, threads: int) -> Any:
    from tensorwright.runtime.engine.tensorrt.executor import TensorRtExecutor

    return TensorRtExecutor(engine)


def _describe_tensorrt(engine: EngineDir) -> dict[str, Any]:
    from tensorwright.runtime.engine.tensorrt.executor import describe

    return describe(engine)


def _limits_of_tensorrt(engine: EngineDir) -> dict[str, int]:
    from tensorwright.runtime.engine.tensorrt.executor import LIMITS, read_manifest

    manifest = read_manifest(engine)
    return {LIMITS[symbol]: manifest.limit(symbol) for symbol in ("seqs", "tokens")}


_TENSORRT = ExecutorKind(_open_tensorrt, _describe_tensorrt, _limits_of_tensorrt)
EXECUTORS: dict[str, ExecutorKind] = {
    "onnx": ExecutorKind(_open_onnx),
    "tensorrt": _TENSORRT,
    "tensorrt-rtx": _TENSORRT,
}
"""By target. A target that is absent runs in the C++ core."""


def describe_engine(engine: EngineDir) -> dict[str, Any]:
    """What the engine's own files say of it; {} for targets whose files say nothing more than config.json."""
    return EXECUTORS[engine.target].describe(engine) if engine.target in EXECUTORS else {}


def default_limits(engine: EngineDir) -> dict[str, int]:
    """DEFAULT_LIMITS, or what the engine was built for where that is less."""
    built = EXECUTORS[engine.target].read_limits(engine) if engine.target in EXECUTORS else {}
    return {name: min(usual, built.get(name, usual)) for name, usual in DEFAULT_LIMITS.items()}


def resolve_options(options: RuntimeOptions, engine: EngineDir, kv_cache_bytes: int) -> EngineOptions:
    """The options with the engine's defaults. InvalidOptionError names an option that the engine's target lacks."""
    target = TARGETS[engine.target]
    if engine.target in EXECUTORS and options.load != "map":
        raise InvalidOptionError(
            f"load={options.load!r}: only engines of target cpu have the choice, this one is of target "
            f"{target.name!r}, which loads its weights itself; leave it out"
        )
    if options.enable_prefix_caching and not target.shares_prefixes:
        raise InvalidOptionError(
            f"enable_prefix_caching=True: in engines of target {target.name!r} each sequence has a cache of its own, "
            "so there is nothing to share; leave it out, or build the engine for target cpu"
        )
    prefixes, chunk = options.enable_prefix_caching, options.max_prefill_chunk
    limits = default_limits(engine)
    batch, tokens = options.with_limits(limits).step_limits(limits)
    return EngineOptions(
        kv_cache_bytes=kv_cache_bytes,
        max_batch_size=batch,
        max_num_tokens=tokens,
        max_prefill_chunk=tokens if chunk is None else chunk,
        max_prompt_logprob_rows=options.max_prompt_logprob_rows,
        threads=choose_threads(options.threads),
        load=options.load,
        enable_prefix_caching=target.shares_prefixes if prefixes is None else prefixes,
        max_queue_size=options.max_queue_size,
    )


def require_cpu(engine: EngineDir, what: str) -> None:
    """InvalidOptionError unless the engine is of target cpu. what: the name of the feature that needs
    one."""
    if engine.target != "cpu":
        raise InvalidOptionError(
            f"{what} needs an engine of target cpu, {engine.path} is of target {engine.target!r}: build the model once "
            "more with --target cpu"
        )
