"""Declares the options of what keeps the blocks of prompts that the KV cache forgets (docs/prefix-cache.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorwright.options.declare import SECONDS, At, Door, Size, declare, path_rule, whole_number

DISK_SIZE = 20 << 30
"""The most bytes of the prefix cache on disk, unless the user says otherwise."""
MAX_CACHE_EVENTS = 1 << 20
"""The most events of the prefix cache that an engine keeps; runtime/core/engine/engine_options.cc has the same."""
_TIERS = {door: At() for door in (Door.LLM, Door.RUN, Door.SERVE, Door.TRITON_REPO, Door.TRITON)}
"""A benchmark computes every prompt, and a simulation has no tiers."""


_PINS = {door: At() for door in (Door.LLM, Door.SERVE)}
"""The other doors have nobody who could pin a prefix, or read events."""


@dataclass(frozen=True)
class PrefixCacheFields:
    """Keywords of LLM, which EngineFields has too. LLM's docstring says what each keyword does."""

    prefix_cache_memory: str | int | None = declare(
        None,
        Size,
        help='Memory beside the KV cache for blocks of prompts that it has no room for, as "4GiB". [default: none]',
        at=_TIERS,
    )
    prefix_cache_disk: str | None = declare(
        None,
        str,
        rule=path_rule("the path of a directory"),
        help="Directory in which blocks of prompts are kept that memory has no room for, also after a restart. "
        "[default: none]",
        at={door: replace(at, metavar="DIR") for door, at in _TIERS.items()},
    )
    prefix_cache_disk_size: str | int | None = declare(
        None, Size, help="The most bytes in --prefix-cache-disk. [default: 20GiB]", at=_TIERS
    )
    prefix_cache_ttl: float | None = declare(
        None,
        float,
        rule=SECONDS,
        help="Seconds after its last use in which a block is kept in --prefix-cache-memory and --prefix-cache-disk. "
        "[default: no limit]",
        at=_TIERS,
    )
    pinned_prefix_memory: str | int | None = declare(
        None,
        Size,
        help='The part of the KV cache that pinned prefixes may hold, as "1GiB"; no request takes it from them. '
        "[default: none]",
        at=_PINS,
    )
    cache_events: int | None = declare(
        None,
        int,
        rule=whole_number(f"a whole number of events from 1 to {MAX_CACHE_EVENTS}", high=MAX_CACHE_EVENTS),
        help="Events of the prefix cache that are kept for those who read them, such as 10000: a reader may be behind "
        "by so many. [default: none]",
        at=_PINS,
    )
