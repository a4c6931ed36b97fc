"""Chooses the executor of an engine by its target, and resolves the options that depend on the target.

Engines of target cpu run in the C++ core, and those of target cuda, whose executor Python opens. Other engines have an
executor in Python, which the C++ engine calls: an object with facts, allocate, run, copy_block and close
(runtime/bindings/python_executor.h). Every executor that Python opens has
kv_cache_bytes(asked, max_batch_size=, max_num_tokens=, max_rows=), which returns the bytes of its cache. The packages
of an executor are imported when an engine is opened to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.pooling import MEAN
from tensorwright.engine_format.targets import GPU_TARGETS, TARGETS
from tensorwright.errors import InvalidOptionError
from tensorwright.options.engine import DEFAULT_LIMITS, GPU_MEMORY
from tensorwright.options.prefix_cache import DISK_SIZE
from tensorwright.runtime.base.host import choose_threads
from tensorwright.runtime.engine.adapters import read_places
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import EngineOptions, PrefixTiers, RuntimeOptions
from tensorwright.runtime.engine.ranks.group import RankGroup
from tensorwright.sizes import format_size

ONNX_PROVIDER = "TENSORWRIGHT_ONNX_PROVIDER"
"""The environment variable that names the provider of ONNX Runtime: "cuda", or "cpu", which is the default."""
CUDA_GRAPHS = "TENSORWRIGHT_CUDA_GRAPHS"
"""The environment variable that is "0" where engines of target cuda start every kernel by itself, and "1" where CUDA
graphs replay decode steps of target tensorrt-rtx."""
CUDA_DRAWS = "TENSORWRIGHT_CUDA_DRAWS"
"""The environment variable that is "0" where the host draws all tokens of engines of target cuda."""
CUDA_AHEAD = "TENSORWRIGHT_CUDA_AHEAD"
"""The environment variable that is "0" where engines of target cuda start no step before the tokens of the last one are
known."""


@dataclass(frozen=True)
class Opening:
    """How an executor is opened. device: the number of its GPU; None for a target without one. gpu_memory: the share of
    the GPU's free memory that the KV cache may take. group: the ranks of a parallel engine."""

    threads: int
    device: int | None = None
    group: RankGroup | None = None
    gpu_memory: float = GPU_MEMORY


@dataclass(frozen=True)
class ExecutorKind:
    """The executors of one target.

    open: makes an executor from the engine.
    describe: returns the facts that only the engine's own files have.
    read_limits: returns the max_batch_size and max_num_tokens for which the engine was built; {} for a target without
    limits.
    check_ranks: raises what keeps the ranks of an engine from running here, before any of them is started: it gets the
    engine, and the numbers of their GPUs on this machine.
    """

    open: Callable[[EngineDir, Opening], Any]
    describe: Callable[[EngineDir], dict[str, Any]] = lambda engine: {}
    read_limits: Callable[[EngineDir], dict[str, int]] = lambda engine: {}
    check_ranks: Callable[[EngineDir, tuple[int, ...]], None] = lambda engine, devices: None


def _open_onnx(engine: EngineDir, opening: Opening) -> Any:
    from tensorwright.runtime.engine.onnx.executor import OnnxExecutor

    return OnnxExecutor(engine, threads=opening.threads, provider=os.environ.get(ONNX_PROVIDER, "cpu"))


def _open_tensorrt(engine: EngineDir, opening: Opening) -> Any:
    from tensorwright.runtime.engine.tensorrt.executor import TensorRtExecutor, TensorRtOptions
    from tensorwright.runtime.engine.tensorrt.runtime_config import KERNELS_VARIABLE, RuntimeSettings

    kernels = os.environ.get(KERNELS_VARIABLE, RuntimeSettings.kernels)
    settings = RuntimeSettings(kernels, graphs=os.environ.get(CUDA_GRAPHS, "0") == "1")
    options = TensorRtOptions(opening.device or 0, opening.gpu_memory, settings)
    return TensorRtExecutor(engine, options=options, group=opening.group)


def _check_tensorrt_ranks(engine: EngineDir, devices: tuple[int, ...]) -> None:
    from tensorwright.runtime.engine.tensorrt.executor import check_ranks

    check_ranks(engine, devices)


def _describe_tensorrt(engine: EngineDir) -> dict[str, Any]:
    from tensorwright.runtime.engine.tensorrt.executor import describe

    return describe(engine)


def _limits_of_tensorrt(engine: EngineDir) -> dict[str, int]:
    from tensorwright.runtime.engine.tensorrt.executor import LIMITS, read_manifest

    manifest = read_manifest(engine)
    return {LIMITS[symbol]: manifest.limit(symbol) for symbol in ("seqs", "tokens")}


def _open_cuda(engine: EngineDir, opening: Opening) -> Any:
    from tensorwright.runtime.engine.cuda.executor import CudaExecutor

    graphs, draws, ahead = (os.environ.get(name, "1") != "0" for name in (CUDA_GRAPHS, CUDA_DRAWS, CUDA_AHEAD))
    return CudaExecutor(
        engine, device=opening.device or 0, threads=opening.threads, graphs=graphs, draws=draws,
        ahead=ahead, memory_share=opening.gpu_memory,
    )  # fmt: skip


def _describe_cuda(engine: EngineDir) -> dict[str, Any]:
    from tensorwright.runtime.engine.cuda.executor import describe

    return describe(engine)


def _limits_of_cuda(engine: EngineDir) -> dict[str, int]:
    from tensorwright.runtime.engine.cuda.executor import read_limits

    return read_limits(engine)


_TENSORRT = ExecutorKind(_open_tensorrt, _describe_tensorrt, _limits_of_tensorrt, _check_tensorrt_ranks)
EXECUTORS: dict[str, ExecutorKind] = {
    "onnx": ExecutorKind(_open_onnx),
    "cuda": ExecutorKind(_open_cuda, _describe_cuda, _limits_of_cuda),
    "tensorrt": _TENSORRT,
    "tensorrt-rtx": _TENSORRT,
}
"""What opens the executor of each target, and what is known of it before. Target cpu is not in this table."""


def describe_engine(engine: EngineDir) -> dict[str, Any]:
    """Returns the facts that the engine's own files have beyond config.json; {} if the target has no such facts."""
    return EXECUTORS[engine.target].describe(engine) if engine.target in EXECUTORS else {}


def default_limits(engine: EngineDir) -> dict[str, int]:
    """Returns the limits for which the engine was built; DEFAULT_LIMITS for a target without limits."""
    built = EXECUTORS[engine.target].read_limits(engine) if engine.target in EXECUTORS else {}
    return {**DEFAULT_LIMITS, **built}


def resolve_options(options: RuntimeOptions, engine: EngineDir, kv_cache_bytes: int) -> EngineOptions:
    """Returns the options with the engine's defaults. Raises InvalidOptionError for an option that the target lacks."""
    target = TARGETS[engine.target]
    if engine.target in EXECUTORS and options.load != "map":
        raise InvalidOptionError(
            f"load={options.load!r}: only engines of target cpu have the choice, this one is of target "
            f"{target.name!r}, which loads its weights itself; leave it out"
        )
    for name in ("devices", "gpu_memory"):
        asked = getattr(options, name)
        if asked is not None and target.name not in GPU_TARGETS:
            raise InvalidOptionError(
                f"{name}={asked!r}: only engines of the targets {', '.join(GPU_TARGETS)} run on a GPU that is "
                f"chosen so, this one is of target {target.name!r}; leave it out"
            )
    if options.numa in ("split", "interleave"):
        require_cpu(engine, f"numa={options.numa!r}")
        if options.load != "copy" and engine.config.ranks == 1:
            raise InvalidOptionError(
                f"numa={options.numa!r}: pages of a mapped file belong to all processes that map it, so they cannot be "
                "placed; set load to 'copy', or leave numa out"
            )
    if options.enable_prefix_caching and not target.shares_prefixes:
        raise InvalidOptionError(
            f"enable_prefix_caching=True: in engines of target {target.name!r} each sequence has a cache of its own, "
            "so there is nothing to share; leave it out, or build the engine for target cpu"
        )
    if options.speculation is not None:
        if not target.verifies_proposals:
            able = " or ".join(one.name for one in TARGETS.values() if one.verifies_proposals)
            raise InvalidOptionError(
                f"speculative needs an engine of target {able}, {engine.path} is of target {engine.target!r}: build "
                f"the model once more with --target {able}"
            )
        if options.speculation.method == "heads" and engine.config.heads is None:
            raise InvalidOptionError(
                f"speculative='heads': {engine.path} was built without heads; build it with --heads, or choose another "
                "method"
            )
        if engine.state_bytes:
            raise InvalidOptionError(
                f"speculative={options.speculation.method!r}: {engine.what_has_states} cannot be taken back behind a "
                "wrong proposal; leave it out"
            )
    if options.jump_forward:
        require_cpu(engine, "jump_forward=True")
        if engine.state_bytes:
            raise InvalidOptionError(
                f"jump_forward=True: {engine.what_has_states} cannot be taken back where a step has to wait for a "
                "mask; leave it out"
            )
    if options.max_loras:
        read_places(engine, "max_loras")
    if engine.config.pooling is not None:
        _refuse_generation(options, engine)
    tiers = _resolve_tiers(options, engine)
    prefixes, chunk = options.enable_prefix_caching, options.max_prefill_chunk
    batch, tokens = options.step_limits(default_limits(engine))
    return EngineOptions(
        kv_cache_bytes=kv_cache_bytes,
        max_batch_size=batch,
        max_num_tokens=tokens,
        max_prefill_chunk=tokens if chunk is None else chunk,
        max_prompt_logprob_rows=tokens if pools_every_row(engine) else options.max_prompt_logprob_rows,
        threads=choose_threads(options.threads),
        load=options.load,
        enable_prefix_caching=target.shares_prefixes if prefixes is None else prefixes,
        max_queue_size=options.max_queue_size,
        state_snapshots=options.state_snapshots or 0,
        speculation=options.speculation,
        numa=options.numa,
        trace=options.trace,
        rank_timeout=options.rank_timeout,
        devices=options.devices,
        gpu_memory=GPU_MEMORY if options.gpu_memory is None else options.gpu_memory,
        trace_steps=options.trace_steps,
        max_loras=options.max_loras or 0,
        max_lora_rank=options.max_lora_rank,
        jump_forward=options.jump_forward is not False and target.name == "cpu" and not engine.state_bytes,
        tiers=tiers,
        pinned_bytes=_resolve_pins(options, engine, kv_cache_bytes),
        cache_events=_resolve_events(options, engine),
        itl_goal=options.itl_goal,
        priority_ageing=options.priority_ageing,
        watchdog=options.watchdog,
        step_limit=options.step_limit,
        watchdog_dir=options.watchdog_dir,
    )


def pools_every_row(engine: EngineDir) -> bool:
    """Returns whether every token of a step may have a row of results, because a mean over all of them is wanted. Such
    a row is a hidden state, which takes no more memory than the other values of its token."""
    return engine.config.pooling is not None and engine.config.pooling.pooling == MEAN


def _refuse_generation(options: RuntimeOptions, engine: EngineDir) -> None:
    """Raises InvalidOptionError for options of engines that draw tokens."""
    asked = {"speculative": options.speculation is not None, "adapters (max_loras)": bool(options.max_loras)}
    for name, given in asked.items():
        if given:
            raise InvalidOptionError(
                f"{name}: {engine.path} was built for task {engine.config.task}, which has none; leave it out"
            )


def _resolve_tiers(options: RuntimeOptions, engine: EngineDir) -> PrefixTiers | None:
    """Returns what keeps blocks that the KV cache has no room for. Raises InvalidOptionError for an engine whose blocks
    cannot be kept elsewhere."""
    if not options.keeps_forgotten_blocks:
        return None
    name = "prefix_cache_memory" if options.prefix_cache_disk is None else "prefix_cache_disk"
    require_cpu(engine, name)
    engine.config.require_one_rank(engine.path, name)
    if options.enable_prefix_caching is False:
        raise InvalidOptionError(f"{name} keeps blocks of the prefix cache, which is off: leave one of both out")
    if engine.state_bytes:
        raise InvalidOptionError(
            f"{name}: {engine.what_has_states} are not kept so, and blocks are of no use without them: leave it out"
        )
    if options.speculation is not None and options.speculation.method in ("draft", "heads"):
        raise InvalidOptionError(
            f"{name}: with speculative={options.speculation.method!r} what proposes has a cache of its own, which is "
            "not kept so: leave one of both out, or choose ngram or suffix"
        )
    size = DISK_SIZE if options.prefix_cache_disk_size is None else options.prefix_cache_disk_size
    return PrefixTiers(
        options.prefix_cache_memory or 0, options.prefix_cache_disk or "", size, options.prefix_cache_ttl or 0.0
    )


def _resolve_pins(options: RuntimeOptions, engine: EngineDir, kv_cache_bytes: int) -> int:
    """Returns the bytes that pinned prefixes may hold. Raises InvalidOptionError for an engine that can pin none."""
    pinned = options.pinned_prefix_memory
    if pinned is None:
        return 0
    _check_blocks_count(options, engine, "pinned_prefix_memory", "pinned")
    if pinned >= kv_cache_bytes:
        raise InvalidOptionError(
            f"pinned_prefix_memory must be less than kv_cache_memory, {format_size(kv_cache_bytes)}, of which it is a "
            f"part, got {format_size(pinned)}: lower it, or raise kv_cache_memory"
        )
    return pinned


def _resolve_events(options: RuntimeOptions, engine: EngineDir) -> int:
    """Returns how many events of the prefix cache are kept. Raises InvalidOptionError for an engine without any."""
    if options.cache_events is None:
        return 0
    _check_blocks_count(options, engine, "cache_events", "told")
    return options.cache_events


def _check_blocks_count(options: RuntimeOptions, engine: EngineDir, name: str, done: str) -> None:
    """Raises InvalidOptionError unless the engine has a prefix cache whose blocks alone are of use to a prompt.

    name: the option that needs it. done: what becomes of the blocks, and not of the states of recurrent layers.
    """
    if options.enable_prefix_caching is False or not TARGETS[engine.target].shares_prefixes:
        raise InvalidOptionError(
            f"{name} is of the prefix cache, which is off, or which engines of this target do not have: leave it out"
        )
    if engine.state_bytes:
        raise InvalidOptionError(
            f"{name}: {engine.what_has_states} are not {done}, and blocks are of no use without them: leave it out"
        )


def require_cpu(engine: EngineDir, what: str) -> None:
    """Raises InvalidOptionError unless the engine is of target cpu. what: the name of the feature that needs target
    cpu."""
    if engine.target != "cpu":
        raise InvalidOptionError(
            f"{what} needs an engine of target cpu, {engine.path} is of target {engine.target!r}: build the model once "
            "more with --target cpu"
        )
