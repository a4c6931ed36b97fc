"""Runs `tensorwright cache`, which lists the engines of the cache and removes some."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from tensorwright.runtime.api.engine_cache import (
    SIZE_VARIABLE,
    CacheEntry,
    cache_entries,
    cache_limit,
    cache_root,
    find_entries,
    remove_entry,
)
from tensorwright.sizes import format_size


def list_cache(as_json: bool) -> None:
    root, limit = cache_root(), cache_limit()
    entries = cache_entries(root)
    total = sum(entry.size for entry in entries)
    if as_json:
        engines = [_as_dict(entry) for entry in entries]
        facts = {"root": str(root), "total_bytes": total, "limit_bytes": limit, "engines": engines}
        click.echo(json.dumps(facts, indent=2))
        return
    for entry in entries:
        state = ", in use" if entry.in_use else ""
        model = f"{entry.model} ({entry.dtype})" if entry.model else "of an unknown model"
        click.echo(f"{entry.key}  {format_size(entry.size):>10}  used {_time(entry)}{state}  {model}")
    click.echo(
        f"{len(entries)} engines, {format_size(total)} of at most {format_size(limit)} ({SIZE_VARIABLE}), in {root}"
    )


def clear_cache(keys: tuple[str, ...], as_json: bool) -> None:
    root = cache_root()
    removed: list[CacheEntry] = []
    kept: list[CacheEntry] = []
    for entry in find_entries(root, keys):
        (removed if remove_entry(root, entry.key) else kept).append(entry)
    freed = sum(entry.size for entry in removed)
    if as_json:
        names = {"removed": [entry.key for entry in removed], "in_use": [entry.key for entry in kept]}
        click.echo(json.dumps({"root": str(root), **names, "freed_bytes": freed}, indent=2))
        return
    click.echo(f"removed {len(removed)} engines, {format_size(freed)}, from {root}")
    for entry in kept:
        click.echo(f"kept {entry.key}: a process uses it")


def _as_dict(entry: CacheEntry) -> dict[str, object]:
    return {
        "key": entry.key,
        "path": str(entry.path),
        "model": entry.model,
        "dtype": entry.dtype,
        "bytes": entry.size,
        "last_used": _time(entry),
        "in_use": entry.in_use,
    }


def _time(entry: CacheEntry) -> str:
    return datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
