"""Engines built from model directories on first use, kept in the user's cache (engine_cache.py).

The key covers what the engine depends on, without reading gigabytes: the directory, the names, sizes and times of
its files, what was chosen (dtype, formats of quantized weights, the type of the KV cache) and the version of
Tensorwright.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import xxhash

import tensorwright
from tensorwright import durable
from tensorwright.engine_format.checksums import REMEDY
from tensorwright.errors import BuildError, CheckpointError, EngineError, MissingDependencyError, reason
from tensorwright.installing import install
from tensorwright.options.build import BuildChoices
from tensorwright.runtime.api.engine_cache import cache_limit, cache_root, note_model, take_lock, trim_cache
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine

Builder = Callable[[Path, Path, BuildChoices], object]
"""(model directory, where the engine goes, choices): builds the engine."""


@dataclass(frozen=True)
class CachedEngine:
    """An engine of the cache. It is not removed while `lease` is open; None where the cache cannot be written to."""

    path: Path
    lease: IO[str] | None


def cache_key(model: Path, choices: BuildChoices) -> str:
    files = sorted(path for path in model.rglob("*") if path.is_file())
    if not files:
        raise CheckpointError(f"{model}: an empty directory; it must hold a Hugging Face model or an engine")
    lines = [str(model.resolve()), str(choices.spelled_out()), tensorwright.__version__]
    for path in files:
        stat = path.stat()
        lines.append(f"{path.relative_to(model)}\0{stat.st_size}\0{stat.st_mtime_ns}")
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


def is_cached(model: Path, choices: BuildChoices) -> bool:
    return (cache_root() / cache_key(model, choices)).is_dir()


def engine_for_model(model: Path, choices: BuildChoices, build: Builder | None = None) -> CachedEngine:
    """The cached engine of a model directory, built first if need be. One process builds, others wait for it."""
    root, key = cache_root(), cache_key(model, choices)
    if (root / key).is_dir() and not os.access(root, os.W_OK):
        return CachedEngine(root / key, None)
    limit = cache_limit()  # a wrong value is told before minutes of building
    while True:
        lease = _lock(root, key, alone=False)
        if (root / key).is_dir():
            os.utime(root / key)  # engines that are not used are the first to go
            return CachedEngine(root / key, lease)
        lease.close()
        build = build or _import_builder()
        with _lock(root, key, alone=True) as lock:
            if not (root / key).is_dir():  # else another process built it while we waited
                _build(lock, root / key, model, choices, build)
                trim_cache(root, limit)


def _build(lock: IO[str], engine: Path, model: Path, choices: BuildChoices, build: Builder) -> None:
    partial = engine.with_name(f"{engine.name}.partial")
    note_model(lock, model, str(choices))
    shutil.rmtree(partial, ignore_errors=True)
    try:
        build(model, partial, choices)
        durable.put_in_place(partial, engine)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_cached(engine: Path) -> EngineDir:
    """Opens an engine of the cache. If it is damaged, the remedy is to remove it: it is built anew on the next use."""
    try:
        return open_engine(engine, read_tokenizer=True)
    except EngineError as error:
        fault = str(error).removesuffix(f"; {REMEDY}")
        remedy = f"remove it with 'tensorwright cache clear {engine.name}' and it is built again"
        raise EngineError(f"{fault}; {remedy}") from error


def require_build_extra(what: str) -> None:
    """MissingDependencyError unless the packages of the build extra are installed; imports none of them."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"{what} needs {' and '.join(missing)}, which this environment lacks; "
            f"{install('build')}, or build the engine elsewhere and copy its directory here"
        )


def _import_builder() -> Builder:
    require_build_extra("building an engine from a model directory")
    # The one import of the builder below runtime/: lazy, so that running an engine needs no build packages.
    from tensorwright.builder.build import build

    return lambda model, out, choices: build(model, out, target="cpu", **vars(choices))


def _lock(root: Path, key: str, *, alone: bool) -> IO[str]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        return take_lock(root, key, alone=alone)
    except OSError as error:
        raise BuildError(
            f"{root}: the engine cache cannot be written ({reason(error)}); set XDG_CACHE_HOME elsewhere"
        ) from error
