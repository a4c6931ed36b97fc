"""Defines the options of a running engine: those that a caller asks for, and those with which the engine runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import check_values
from tensorwright.options.engine import GPU_MEMORY, EngineFields
from tensorwright.options.speculation import Speculation


@dataclass(frozen=True)
class RuntimeOptions:
    """The options that a caller asks for. None leaves the choice to the engine: kv_cache_bytes depends on the free
    memory, state_snapshots on kv_cache_bytes, the limits of a step, enable_prefix_caching and jump_forward on the
    target, threads on the machine, and max_prefill_chunk is then max_num_tokens. Raises InvalidOptionError.
    """

    kv_cache_bytes: int | None
    max_batch_size: int | None
    max_num_tokens: int | None
    max_prefill_chunk: int | None
    max_prompt_logprob_rows: int
    threads: int | None
    load: str
    enable_prefix_caching: bool | None
    max_queue_size: int
    state_snapshots: int | None = None
    speculation: Speculation | None = None
    numa: str = "auto"
    trace: str | None = None
    rank_timeout: float = 300.0
    devices: str | None = None
    gpu_memory: float | None = None
    trace_steps: bool = False
    max_loras: int | None = None
    max_lora_rank: int = 16
    jump_forward: bool | None = None
    prefix_cache_memory: int | None = None
    prefix_cache_disk: str | None = None
    prefix_cache_disk_size: int | None = None
    prefix_cache_ttl: float | None = None
    pinned_prefix_memory: int | None = None
    cache_events: int | None = None
    itl_goal: float | None = None
    priority_ageing: float | None = None
    watchdog: str = "off"
    step_limit: float = 300.0
    watchdog_dir: str | None = None

    def __post_init__(self) -> None:
        check_values(self, EngineFields, prefix="LLM: ")
        if self.max_num_tokens is not None:
            self._check_limits(self.max_num_tokens)
        if self.gpu_memory is not None and self.kv_cache_bytes is not None:
            raise InvalidOptionError(
                "LLM: gpu_memory is the share of memory where kv_cache_memory says no size: leave one of both out"
            )
        if self.prefix_cache_disk_size is not None and self.prefix_cache_disk is None:
            raise InvalidOptionError(
                "LLM: prefix_cache_disk_size is the size of prefix_cache_disk, which is not set: name a directory"
            )
        if self.prefix_cache_ttl is not None and not self.keeps_forgotten_blocks:
            raise InvalidOptionError(
                "LLM: prefix_cache_ttl is of prefix_cache_memory and prefix_cache_disk, and neither is set: set one"
            )

    @property
    def keeps_forgotten_blocks(self) -> bool:
        """Whether blocks that the KV cache has no room for are kept elsewhere."""
        return self.prefix_cache_memory is not None or self.prefix_cache_disk is not None

    def with_limits(self, usual: Mapping[str, int]) -> RuntimeOptions:
        """Returns the same options, with the usual limits of a step where the caller asked for none.

        usual: a mapping like DEFAULT_LIMITS. The usual max_batch_size is reduced to max_num_tokens if that is less.
        """
        batch, tokens = self.step_limits(usual)
        return replace(self, max_batch_size=batch, max_num_tokens=tokens)

    def step_limits(self, usual: Mapping[str, int]) -> tuple[int, int]:
        """Returns max_batch_size and max_num_tokens, as with_limits() sets them."""
        batch, tokens = self.max_batch_size, self.max_num_tokens
        tokens = usual["max_num_tokens"] if tokens is None else tokens
        self._check_limits(tokens)
        return min(usual["max_batch_size"], tokens) if batch is None else batch, tokens

    def _check_limits(self, tokens: int) -> None:
        if self.max_batch_size is not None and tokens < self.max_batch_size:
            raise InvalidOptionError(
                f"LLM: max_num_tokens must be at least max_batch_size ({self.max_batch_size}), for every running "
                f"request takes a token of each step, got {tokens}"
            )


@dataclass(frozen=True)
class PrefixTiers:
    """What keeps blocks that the KV cache has no room for.

    memory: bytes, 0 for none. disk: a directory, "" for none. disk_size: bytes. ttl: the seconds after its last use in
    which a block is kept; 0 means no limit.
    """

    memory: int
    disk: str
    disk_size: int
    ttl: float


@dataclass(frozen=True)
class EngineOptions:
    """The options with which an engine runs; none is left open.

    kv_cache_bytes: the size of the KV cache in bytes, without the states of recurrent layers. state_snapshots: the
    states that are kept besides those of max_batch_size sequences; 0 for a model without states. speculation: None if
    nothing is proposed. trace: the file of the timeline, None if none is kept. trace_steps: whether the
    steps alone are kept in memory. work_cut: the sizes of
    runtime/core/base/work_cut.h that are not the defaults. itl_goal, priority_ageing: seconds, None for none.
    max_loras: the names of adapters that there may be; 0 means that the engine takes none. tiers: what keeps blocks
    that the KV cache has no room for; None if nothing does. pinned_bytes: of kv_cache_bytes, what pinned prefixes may
    hold. cache_events: the events of the prefix cache that are kept for those who read them; 0 means that nobody can.
    """

    kv_cache_bytes: int
    max_batch_size: int
    max_num_tokens: int
    max_prefill_chunk: int
    max_prompt_logprob_rows: int
    threads: int
    load: str
    enable_prefix_caching: bool
    max_queue_size: int
    state_snapshots: int = 0
    speculation: Speculation | None = None
    numa: str = "auto"
    trace: str | None = None
    rank_timeout: float = 300.0
    devices: str | None = None
    gpu_memory: float = GPU_MEMORY
    trace_steps: bool = False
    work_cut: Mapping[str, int] = field(default_factory=dict)
    max_loras: int = 0
    max_lora_rank: int = 16
    jump_forward: bool = False
    tiers: PrefixTiers | None = None
    pinned_bytes: int = 0
    cache_events: int = 0
    itl_goal: float | None = None
    priority_ageing: float | None = None
    watchdog: str = "off"
    step_limit: float = 300.0
    watchdog_dir: str | None = None
