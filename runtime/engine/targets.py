"""What the runtime knows of each target: the files of its engines, who runs their steps, which options apply.

Target cpu runs in the C++ core. The others have an executor written in Python, which the C++ engine drives: an object
with facts, allocate, run, copy_block and close (runtime/bindings/python_executor.h), and
kv_cache_bytes(asked, max_batch_size=, max_num_tokens=, max_rows=), the bytes for its cache. Their packages are imported
when an engine is opened to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tensorwright.errors import InvalidOptionError

if TYPE_CHECKING:
    from tensorwright.runtime.engine.engine_dir import EngineDir
    from tensorwright.runtime.engine.native import RuntimeOptions

ONNX_PROVIDER = "TENSORWRIGHT_ONNX_PROVIDER"
"""Environment: "cpu", unless it says "cuda"."""

DEFAULT_LIMITS = {"max_batch_size": 64, "max_num_tokens": 512}
"""Of steps, unless an engine was built for less."""

Opener = Callable[["EngineDir", "RuntimeOptions"], Any]
Limits = Callable[["EngineDir"], dict[str, int]]


@dataclass(frozen=True)
class Target:
    """files: the last says what the engine is. weights: the largest of them, what an engine keeps in memory.
    shares_prefixes: its cache has blocks that sequences share. describe: what an engine's own files say of it.
    read_limits: max_batch_size and max_num_tokens that an engine was built for, where its target has such limits.
    """

    name: str
    files: tuple[str, ...]
    weights: str
    dtypes: tuple[str, ...]
    shares_prefixes: bool = True
    open_executor: Opener | None = None
    describe: Callable[[EngineDir], dict[str, Any]] = lambda engine: {}
    read_limits: Limits | None = None

    def resolve(self, options: RuntimeOptions, engine: EngineDir) -> RuntimeOptions:
        """The options with the engine's defaults; InvalidOptionError names one that its target does not have."""
        from tensorwright.runtime.base.host import choose_threads

        if self.open_executor is not None and options.load != "map":
            raise InvalidOptionError(
                f"load={options.load!r}: only engines of target cpu have the choice, this one is of target "
                f"{self.name!r}, which loads its weights itself; leave it out"
            )
        if options.enable_prefix_caching and not self.shares_prefixes:
            raise InvalidOptionError(
                f"enable_prefix_caching=True: in engines of target {self.name!r} each sequence has a cache of its own, "
                "so there is nothing to share; leave it out, or build the engine for target cpu"
            )
        prefixes = options.enable_prefix_caching
        options = options.with_limits(self.default_limits(engine))
        return replace(
            options,
            threads=choose_threads(options.threads),
            enable_prefix_caching=self.shares_prefixes if prefixes is None else prefixes,
        )

    def default_limits(self, engine: EngineDir) -> dict[str, int]:
        """DEFAULT_LIMITS, or what the engine was built for where that is less."""
        built = {} if self.read_limits is None else self.read_limits(engine)
        return {name: min(usual, built.get(name, usual)) for name, usual in DEFAULT_LIMITS.items()}


def _open_onnx(engine: EngineDir, options: RuntimeOptions) -> Any:
    from tensorwright.runtime.engine.onnx.executor import OnnxExecutor

    assert options.threads is not None  # resolved
    return OnnxExecutor(engine, threads=options.threads, provider=os.environ.get(ONNX_PROVIDER, "cpu"))


def _open_tensorrt(engine: EngineDir, options: RuntimeOptions) -> Any:
    from tensorwright.runtime.engine.tensorrt.executor import TensorRtExecutor

    return TensorRtExecutor(engine)


def _describe_tensorrt(engine: EngineDir) -> dict[str, Any]:
    from tensorwright.runtime.engine.tensorrt.executor import describe

    return describe(engine)


def _limits_of_tensorrt(engine: EngineDir) -> dict[str, int]:
    from tensorwright.runtime.engine.tensorrt.executor import LIMITS, read_manifest

    manifest = read_manifest(engine)
    return {LIMITS[symbol]: manifest.limit(symbol) for symbol in ("seqs", "tokens")}


_GPU: dict[str, Any] = {
    "files": ("tensorrt/rank0.engine", "tensorrt/io.json"),
    "weights": "tensorrt/rank0.engine",
    "dtypes": ("float32", "float16", "bfloat16"),
    "open_executor": _open_tensorrt,
    "describe": _describe_tensorrt,
    "read_limits": _limits_of_tensorrt,
}
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("cpu", ("cpu/weights.bin", "cpu/plan.bin"), "cpu/weights.bin", ("float32", "bfloat16")),
        Target(
            "onnx",
            ("onnx/model.onnx", "onnx/model.onnx.data", "onnx/io.json"),
            "onnx/model.onnx.data",
            ("float32", "float16"),
            shares_prefixes=False,
            open_executor=_open_onnx,
        ),
        Target("tensorrt", **_GPU),
        Target("tensorrt-rtx", **_GPU),
    )
}
"""By the name in config.json."""


def require_cpu(engine: EngineDir, what: str) -> None:
    """InvalidOptionError unless it is an engine of target cpu; what: needs one."""
    if engine.target != "cpu":
        raise InvalidOptionError(
            f"{what} needs an engine of target cpu, {engine.path} is of target {engine.target!r}: build the model once "
            "more with --target cpu"
        )
