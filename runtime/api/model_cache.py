"""Builds engines from model directories on first use, and keeps them in the user's cache (engine_cache.py).

The key of an engine covers everything on which the engine depends, without reading gigabytes: the directory, or the
GGUF file; the names, sizes and times of its files; the choices (dtype, formats of quantized weights, type of the KV
cache); and the version of Tensorwright.
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
from tensorwright.gguf_names import gguf_parts, is_gguf
from tensorwright.installing import BUILD_PACKAGES, install
from tensorwright.options.build import FIRST_USE
from tensorwright.options.build_choices import BuildChoices
from tensorwright.runtime.api.engine_cache import cache_limit, cache_root, note_model, take_lock, trim_cache
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine

Builder = Callable[[Path, Path, BuildChoices], object]
"""A function of (model directory, path of the engine, choices) that builds the engine."""


@dataclass(frozen=True)
class CachedEngine:
    """An engine of the cache.

    lease: a shared lock; the engine is not removed while this file is open. None if the cache cannot be written to.
    """

    path: Path
    lease: IO[str] | None


def cache_key(model: Path, choices: BuildChoices) -> str:
    folder = model.parent if is_gguf(model) else model
    files = gguf_parts(model) if is_gguf(model) else sorted(model.rglob("*"))
    files = [path for path in files if path.is_file()]
    if not files:
        raise CheckpointError(f"{model}: an empty directory; it must hold a Hugging Face model or an engine")
    lines = [str(model.resolve()), choices.key, tensorwright.__version__]
    for path in files:
        stat = path.stat()
        lines.append(f"{path.relative_to(folder)}\0{stat.st_size}\0{stat.st_mtime_ns}")
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


def is_cached(model: Path, choices: BuildChoices) -> bool:
    return (cache_root() / cache_key(model, choices)).is_dir()


def engine_for_model(model: Path, choices: BuildChoices, build: Builder | None = None) -> CachedEngine:
    """Returns the cached engine of a model directory, and builds it first if necessary.

    One process builds the engine, and other processes wait for it.
    """
    root, key = cache_root(), cache_key(model, choices)
    if (root / key).is_dir() and not os.access(root, os.W_OK):
        return CachedEngine(root / key, None)
    limit = cache_limit()  # a wrong value must raise its error before minutes of building
    while True:
        lease = _lock(root, key, alone=False)
        if (root / key).is_dir():
            os.utime(root / key)  # trim_cache() removes the longest unused engines first
            return CachedEngine(root / key, lease)
        lease.close()
        build = build or _import_builder()
        with _lock(root, key, alone=True) as lock:
            if not (root / key).is_dir():  # if it exists now, another process built it while this one waited
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
    """Opens an engine of the cache. The EngineError for a damaged engine says to remove it; its next use builds it
    again."""
    try:
        return open_engine(engine, read_tokenizer=True)
    except EngineError as error:
        fault = str(error).removesuffix(f"; {REMEDY}")
        remedy = f"remove it with 'tensorwright cache clear {engine.name}' and it is built again"
        raise EngineError(f"{fault}; {remedy}") from error


def require_build_extra(what: str) -> None:
    """Raises MissingDependencyError unless the packages of the build extra are installed. It imports none of them."""
    missing = [name for name in BUILD_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"{what} needs {' and '.join(missing)}, which this environment lacks; "
            f"{install('build')}, or build the engine elsewhere and copy its directory here"
        )


def _import_builder() -> Builder:
    require_build_extra("building an engine from a model directory")
    # This is the only import of the builder in runtime/. It is lazy, so that running an engine needs no build packages.
    from tensorwright.builder.build import build

    return lambda model, out, choices: build(model, out, target=FIRST_USE.name, **vars(choices))


def _lock(root: Path, key: str, *, alone: bool) -> IO[str]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        return take_lock(root, key, alone=alone)
    except OSError as error:
        raise BuildError(
            f"{root}: the engine cache cannot be written ({reason(error)}); set XDG_CACHE_HOME elsewhere"
        ) from error
