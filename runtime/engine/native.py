"""Starts C++ engines and executors. It is the only file that uses the C++ module's types for them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.file_names import TUNING
from tensorwright.engine_format.pooling import EMBED
from tensorwright.engine_format.targets import TARGETS
from tensorwright.errors import (
    EngineError,
    InvalidOptionError,
    MissingDependencyError,
    OutOfMemoryError,
    TensorwrightWarning,
)
from tensorwright.runtime.base.host import available_memory, default_threads, processor
from tensorwright.runtime.engine.adapters import REPLACEMENTS, adapter_bytes, read_places, step_bytes
from tensorwright.runtime.engine.draft_engine import open_draft, read_draft_tokens
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.executors import EXECUTORS, Opening, require_cpu, resolve_options
from tensorwright.runtime.engine.fingerprint import files_fingerprint, kernels_fingerprint
from tensorwright.runtime.engine.memory import check_kv_bytes, default_kv_bytes, populated_bytes, share_cache
from tensorwright.runtime.engine.options import EngineOptions, RuntimeOptions
from tensorwright.runtime.engine.ranks.devices import devices_here
from tensorwright.runtime.engine.ranks.start import StartedRanks, start_ranks
from tensorwright.runtime.engine.ranks.under_mpi import own_rank, ranks_here, require_ranks
from tensorwright.runtime.engine.tier_secret import pin_file, read_secret
from tensorwright.runtime.engine.tuning import REMEDY as TUNING_REMEDY
from tensorwright.runtime.engine.tuning import Tuning, find_tuning
from tensorwright.sizes import format_size

if TYPE_CHECKING:
    from tensorwright.runtime import _runtime

DRAFT_SHARE = 0.5
"""The share of the GPU's memory that is free beside the engine and its cache which the cache of a draft model takes."""
REPLACING = ("restart", "exit")
"""The values of the option watchdog with which another engine takes the place of one that died."""


def load_module() -> Any:
    """The compiled module `_runtime`; MissingDependencyError if it does not load."""
    try:
        from tensorwright.runtime import _runtime
    except ImportError as error:
        raise MissingDependencyError(
            f"the compiled runtime does not load ({error}); install tensorwright with pip, "
            "which compiles it, rather than running from the source folder"
        ) from error
    return _runtime


def start_engine(engine: EngineDir, options: RuntimeOptions) -> tuple[_runtime.Engine, EngineOptions]:
    """Sizes the KV cache and starts the engine. Returns the engine and the options that it runs with."""
    require_ranks(engine)
    asked = options.kv_cache_bytes
    resolved = resolve_options(options, engine, asked or 0)
    if engine.target not in EXECUTORS:
        resolved = _with_tuning(resolved, options, engine)
    batch = resolved.max_batch_size
    if engine.target not in EXECUTORS:
        prefixes = resolved.enable_prefix_caching
        free = available_memory() // ranks_here(engine)  # each rank has a cache of this size
        free = max(0, free - _adapter_memory(engine, resolved) - _tier_memory(resolved, free))
        if asked is None:
            size = default_kv_bytes(engine, batch, free, prefixes=prefixes)
        else:
            size = check_kv_bytes(asked, engine, free)
        resolved = _with_shares(engine, resolved, size, options.state_snapshots)
        return create_engine(engine, resolved), resolved
    with _opened_executor(engine, resolved) as (executor, ranks), _opened_draft(engine, resolved) as draft:
        beside = {} if draft is None else {"beside": draft.least_bytes(resolved)}
        size = executor.kv_cache_bytes(asked, **_step_sizes(resolved), **beside)
        resolved = _with_shares(engine, resolved, size, options.state_snapshots)
        return create_engine(engine, resolved, executor, ranks, draft), resolved


def _step_sizes(options: EngineOptions) -> dict[str, int]:
    """Returns the sizes of the largest step, by the names that executors take."""
    batch, tokens = options.max_batch_size, options.max_num_tokens
    proposed = 0 if options.speculation is None else options.speculation.rows
    rows = min(batch + options.max_prompt_logprob_rows + proposed, tokens)
    return {"max_batch_size": batch, "max_num_tokens": tokens, "max_rows": rows}


@dataclass(frozen=True)
class OpenedDraft:
    """A draft model on a GPU: its engine, and its executor, which the engine takes over."""

    engine: EngineDir
    executor: Any

    def sizes(self, options: EngineOptions) -> dict[str, int]:
        """Returns the sizes of its largest step: each sequence has one row."""
        return {**_step_sizes(options), "max_rows": options.max_batch_size}

    def least_bytes(self, options: EngineOptions) -> int:
        """Returns the GPU's bytes that it takes at least, beside its weights: more with a cache that was asked for."""
        assert options.speculation is not None
        return int(self.executor.least_bytes(**self.sizes(options))) + (options.speculation.kv_cache_memory or 0)


@contextmanager
def _opened_draft(engine: EngineDir, options: EngineOptions) -> Iterator[OpenedDraft | None]:
    """Opens the draft model of an engine whose executor Python opens, and closes it if what is inside fails. None: it
    has none. Raises what open_draft() raises, and InvalidOptionError for one that was built for smaller steps."""
    if options.speculation is None or options.speculation.model is None:
        yield None
        return
    draft = open_draft(options.speculation.model, engine)
    draft.config.require_generation(draft.path, "proposing tokens")
    kind, device = EXECUTORS[draft.target], devices_here(options.devices, 1)[0]
    for name, most in kind.read_limits(draft).items():
        if most < getattr(options, name):
            raise InvalidOptionError(
                f"speculative: the draft model {draft.path} was built for {name} of at most {most}, and the engine "
                f"runs with {getattr(options, name)}; lower that, or build the draft model with a larger one"
            )
    executor = kind.open(draft, Opening(options.threads, device, gpu_memory=DRAFT_SHARE))
    try:
        yield OpenedDraft(draft, executor)
    except BaseException:
        executor.close()
        raise


def _with_shares(engine: EngineDir, resolved: EngineOptions, size: int, snapshots: int | None) -> EngineOptions:
    """Returns the options with the parts of a cache of `size` bytes; snapshots: how many the user asks for. Warns where
    fewer completions have states than a batch may hold."""
    batch = resolved.max_batch_size
    shares = share_cache(engine, size, batch, snapshots if resolved.enable_prefix_caching else 0)
    if shares.sequences < batch:
        warnings.warn(
            f"kv_cache_memory of {format_size(size)} holds the states of {shares.sequences} completions of "
            f"{format_size(engine.state_bytes)} each, so no more run at once, where max_batch_size is {batch}",
            TensorwrightWarning,
            stacklevel=3,
        )
    return replace(
        resolved, kv_cache_bytes=shares.kv_bytes, max_batch_size=shares.sequences, state_snapshots=shares.snapshots
    )


def start_again(engine: EngineDir, options: EngineOptions) -> _runtime.Engine:
    """Starts an engine like one that has lost ranks, with the options that start_engine() returned."""
    if engine.target not in EXECUTORS:
        return create_engine(engine, options)
    with _opened_executor(engine, options) as (executor, ranks), _opened_draft(engine, options) as draft:
        return create_engine(engine, options, executor, ranks, draft)


@contextmanager
def _opened_executor(engine: EngineDir, options: EngineOptions) -> Iterator[tuple[Any, StartedRanks | None]]:
    """Opens the executor of rank 0, and ends it and the other ranks if what is inside fails."""
    ranks, executor = _open_executor(engine, options)
    try:
        yield executor, ranks
    except BaseException:
        executor.close()
        if ranks is not None:
            ranks.give_up()
        raise


def _open_executor(engine: EngineDir, options: EngineOptions) -> tuple[StartedRanks | None, Any]:
    """Opens the executor of rank 0, with the other ranks of a parallel engine, which open theirs at the same time."""
    kind, here = EXECUTORS[engine.target], ranks_here(engine)
    devices = devices_here(options.devices, here)
    if engine.config.ranks == 1:
        return None, kind.open(engine, Opening(options.threads, devices[0], gpu_memory=options.gpu_memory))
    kind.check_ranks(engine, devices)
    ranks = start_ranks(engine, options, load_module())
    try:
        opening = Opening(ranks.threads, devices[ranks.group.local], ranks.group, options.gpu_memory)
        return ranks, kind.open(engine, opening)
    except BaseException:
        ranks.give_up()
        raise


def create_engine(
    engine: EngineDir,
    options: EngineOptions,
    executor: Any = None,
    ranks: StartedRanks | None = None,
    opened_draft: OpenedDraft | None = None,
) -> _runtime.Engine:
    """Starts the C++ engine. executor: for targets other than cpu; the engine takes it over, as it does that of the
    draft model. ranks: with which it was opened; those of target cpu are started here."""
    runtime = load_module()
    native: _runtime.EngineOptions = runtime.EngineOptions()
    native.kv_cache_bytes = options.kv_cache_bytes
    native.max_batch_size = options.max_batch_size
    native.max_num_tokens = options.max_num_tokens
    native.max_chunk = options.max_prefill_chunk
    native.max_prompt_rows = options.max_prompt_logprob_rows
    native.itl_goal_s = options.itl_goal or 0.0
    native.ageing_s = options.priority_ageing or 0.0
    native.pinned_bytes = options.pinned_bytes
    native.cache_events = options.cache_events
    native.prefix_cache = options.enable_prefix_caching
    native.jump_forward = options.jump_forward
    native.max_queue = options.max_queue_size
    native.state_snapshots = options.state_snapshots
    native.threads = options.threads
    native.trace = options.trace is not None
    native.trace_steps = options.trace_steps
    if options.max_loras:
        native.max_adapters = options.max_loras + REPLACEMENTS
        native.max_adapter_rank = options.max_lora_rank * read_places(engine, "max_loras").most_modules
    draft = _set_speculation(native, engine, options, executor, opened_draft)
    _set_tiers(native, engine, options)
    if executor is None and engine.config.ranks > 1:
        ranks = start_ranks(engine, options, runtime)
    if ranks is not None:
        native.threads, native.ranks, native.processors = ranks.threads, ranks.options, ranks.processors
    try:
        if executor is None:
            native.load = options.load
            native.numa = options.numa if ranks is None else "off"  # ranks have processors of their own
            native.work_cut = options.work_cut
            _tell_of_nodes(options)
            native.populate_bytes = populated_bytes()
            started = runtime.Engine(str(engine.plan), str(engine.weights), native)
        elif opened_draft is not None:
            started = runtime.Engine(executor, native, opened_draft.executor)
        else:
            started = runtime.Engine(executor, native)
    except MemoryError as error:
        if ranks is not None:
            ranks.give_up()
        if isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(
            f"{engine.path}: there is not enough memory to start with max_batch_size={options.max_batch_size} and "
            f"max_num_tokens={options.max_num_tokens}; lower them, or kv_cache_memory"
        ) from error
    except BaseException:
        if ranks is not None:
            ranks.give_up()
        raise
    try:
        if ranks is not None:
            ranks.started()
        engine.check_unchanged()
        if draft is not None:
            draft.check_unchanged()
        _check_facts(engine, started.facts())
    except BaseException:
        started.shutdown(False)
        raise
    return started


def _adapter_memory(engine: EngineDir, options: EngineOptions) -> int:
    """Returns the bytes that as many adapters as there may be take at most, with those of their steps."""
    if not options.max_loras:
        return 0
    places, rank = read_places(engine, "max_loras"), options.max_lora_rank
    adapters = (options.max_loras + REPLACEMENTS) * adapter_bytes(places, rank)
    return adapters + step_bytes(places, rank, options.max_num_tokens)


def _tier_memory(options: EngineOptions, free: int) -> int:
    """Returns the bytes of memory for blocks that the KV cache has no room for. Raises OutOfMemoryError for more than
    are free."""
    if options.tiers is None:
        return 0
    if options.tiers.memory > free:
        raise OutOfMemoryError(
            f"prefix_cache_memory is {format_size(options.tiers.memory)}, but {format_size(free)} of memory are "
            "available: ask for less, or leave it out"
        )
    return options.tiers.memory


def _set_tiers(native: Any, engine: EngineDir, options: EngineOptions) -> None:
    """Sets what keeps blocks that the KV cache has no room for, and the secret that blocks are named with."""
    tiers = options.tiers
    if options.cache_events or tiers is not None:
        native.tier_secret = read_secret("" if tiers is None else tiers.disk)
    if tiers is None:
        return
    native.tier_memory_bytes = tiers.memory
    native.tier_disk = tiers.disk
    native.tier_disk_bytes = tiers.disk_size
    native.tier_ttl = tiers.ttl
    native.tier_identity = f"{files_fingerprint(engine)} {kernels_fingerprint(dispatch_choices())}"


def pins_of(engine: EngineDir, options: EngineOptions) -> Path | None:
    """Returns the file of the engine's pinned prefixes; None where nothing is kept on disk."""
    if options.tiers is None or not options.tiers.disk:
        return None
    return pin_file(options.tiers.disk, read_secret(options.tiers.disk), files_fingerprint(engine))


def can_start_again(engine: EngineDir, options: EngineOptions) -> bool:
    """Returns whether another engine can take the place of one that was lost: ranks must be processes of this one.
    Nobody but its client may refer to an engine of one rank, as adapters and the file of a trace do."""
    if engine.config.ranks > 1:
        return own_rank() is None
    return options.watchdog in REPLACING and not options.max_loras and options.trace is None


def _with_tuning(resolved: EngineOptions, asked: RuntimeOptions, engine: EngineDir) -> EngineOptions:
    """Returns the options with what `tensorwright tune` found best here, where the caller asked for nothing else."""
    tuning = tuning_of(engine)
    if tuning is None:
        return resolved
    sizes = work_cut_defaults()
    unknown = sorted(set(tuning.work_cut) - set(sizes))
    if unknown:
        raise EngineError(f"{engine.path / TUNING}: work_cut has no {', '.join(unknown)}; {TUNING_REMEDY}")
    threads = resolved.threads
    if asked.threads is None and tuning.threads is not None:
        threads = min(tuning.threads, len(os.sched_getaffinity(0)))
    return replace(resolved, threads=threads, work_cut=tuning.work_cut)


def tuning_of(engine: EngineDir) -> Tuning | None:
    """Returns what was found best for the engine on this machine. Raises EngineError for a wrong file."""
    if not (engine.path / TUNING).exists():  # it is not asked what machine this is
        return None
    return find_tuning(engine.path, this_machine())


def this_machine() -> tuple[str, int, int]:
    """Returns what a machine is known by in tuning.json: processor, cores and NUMA nodes."""
    return processor()[0], default_threads(), topology()["nodes"]


def _tell_of_nodes(options: EngineOptions) -> None:
    """Warns if the engine would be faster with weights on the nodes that read them."""
    if options.numa != "auto" or options.load != "map":
        return
    machine = topology()
    if machine["nodes"] > 1 and options.threads == machine["cores"]:
        warnings.warn(
            f"this machine has {machine['nodes']} NUMA nodes, and mapped weights lie where they were read first: "
            "load='copy' puts each thread's part on its own node; numa='off' leaves it as it is without this warning",
            TensorwrightWarning,
            stacklevel=5,
        )


def work_cut_defaults() -> dict[str, int]:
    """Returns the sizes by which products are cut into tasks, by the names of runtime/core/base/work_cut.h."""
    sizes: dict[str, int] = dict(load_module().EngineOptions().work_cut)
    return sizes


def topology() -> dict[str, int]:
    """Returns "nodes" and "cores", the NUMA nodes and physical cores that this process may use."""
    found: dict[str, int] = load_module().topology()
    return found


def _set_speculation(
    native: Any, engine: EngineDir, options: EngineOptions, executor: Any, opened: OpenedDraft | None
) -> EngineDir | None:
    """Sets what proposes tokens. Returns the engine of the draft model, if there is one. executor, opened: of an engine
    on a GPU and of its draft model."""
    speculation = options.speculation
    if speculation is None:
        return None
    native.proposer = speculation.method
    native.draft_tokens = speculation.tokens
    native.draft_rows = speculation.rows
    native.draft_least = speculation.min_match
    native.draft_remembered = speculation.remembered
    if speculation.method == "heads":
        native.draft_token_ids = read_draft_tokens(engine)
    if speculation.model is None:
        return None
    if opened is not None:
        taken = options.kv_cache_bytes + executor.least_bytes(**_step_sizes(options))
        try:
            native.draft_kv_bytes = opened.executor.kv_cache_bytes(
                speculation.kv_cache_memory, **opened.sizes(options), beside=taken
            )
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"speculative: for the draft model {opened.engine.path}, {error}") from None
        return opened.engine
    draft = open_draft(speculation.model, engine)
    draft.config.require_generation(draft.path, "proposing tokens")
    asked, batch = speculation.kv_cache_memory, options.max_batch_size
    free = available_memory() - options.kv_cache_bytes  # the target's cache is not there yet
    try:
        size = default_kv_bytes(draft, batch, free) if asked is None else check_kv_bytes(asked, draft, free)
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"speculative: for the draft model {draft.path}, {error}") from None
    native.draft_plan, native.draft_weights = str(draft.plan), str(draft.weights)
    native.draft_kv_bytes = size
    return draft


def create_executor(engine: EngineDir, threads: int) -> _runtime.CpuExecutor:
    """Opens the plan and the weights to run steps by hand. The caller must call allocate() first."""
    require_cpu(engine, "running steps by hand")
    engine.config.require_one_rank(engine.path, "running steps by hand")
    executor: _runtime.CpuExecutor = load_module().CpuExecutor(str(engine.plan), str(engine.weights), threads, "map")
    engine.check_unchanged()
    _check_facts(engine, executor.facts())
    return executor


def _check_facts(engine: EngineDir, plan: dict[str, Any]) -> None:
    """Raises EngineError if config.json and the plan differ, because then they come from two builds."""
    facts = {name: plan[name] for name in ("vocab_size", "max_seq_len", "block_size", "draft_vocab")}
    pooling = engine.config.pooling
    if (plan["hidden_width"] > 0) and (pooling is None or pooling.task != EMBED):
        raise EngineError(f"{engine.path}: its plan ends with hidden states, and config.json says otherwise; {REMEDY}")
    sizes = {"kv_block_bytes": sum(plan["block_bytes"]), "state_bytes": plan["state_bytes"]}
    engine.require_same_build(TARGETS[engine.target].files[-1], facts | sizes)


def read_profile(engine: _runtime.Engine) -> dict[str, Any]:
    """Returns the measurements of an engine by phase: the phase's steps, and the sums of each instruction."""
    return {
        phase: {"steps": steps, "instructions": engine.profile_table(phase)}
        for phase, steps in engine.profile_steps().items()
    }


def weight_reads(engine: EngineDir) -> dict[str, Any]:
    """Returns what a step of one token reads of the weights of an engine of target cpu: "bytes" in all, and "mixtures",
    a list over the layers of experts with their module, experts, taken (experts that a token takes) and bytes_of_one
    (expert)."""
    reads: dict[str, Any] = create_executor(engine, 1).weight_reads()
    return reads


def dispatch_choices() -> list[dict[str, Any]]:
    """Returns which kernel of each family this machine runs, and why the better kernels were refused."""
    return [
        {"family": family, "taken": taken, "refused": list(refused)}
        for family, taken, refused in load_module().explain_dispatch()
    ]
