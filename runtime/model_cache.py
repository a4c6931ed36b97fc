"""Engines built from model directories on first use, kept in the user's cache.

    <cache>/tensorwright/engines/<key>          the engine
    <cache>/tensorwright/engines/<key>.lock     held while it is built
    <cache>/tensorwright/engines/<key>.partial  a build under way, or one that was killed

The key covers what the engine depends on, without reading gigabytes: the directory, the names, sizes and times of
its files, the dtype and the version of Tensorwright.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

import tensorwright
from tensorwright.errors import BuildError, CheckpointError, EngineError, MissingDependencyError
from tensorwright.runtime.checksums import REMEDY
from tensorwright.runtime.engine_dir import EngineDir, open_engine

Builder = Callable[[Path, Path, str], object]
"""(model directory, where the engine goes, dtype): builds the engine."""


def cache_root() -> Path:
    """$XDG_CACHE_HOME/tensorwright/engines; the specification says to ignore a relative XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tensorwright" / "engines"


def cache_key(model: Path, dtype: str) -> str:
    files = sorted(path for path in model.rglob("*") if path.is_file())
    if not files:
        raise CheckpointError(f"{model}: an empty directory; it must hold a Hugging Face model or an engine")
    lines = [str(model.resolve()), dtype, tensorwright.__version__]
    for path in files:
        stat = path.stat()
        lines.append(f"{path.relative_to(model)}\0{stat.st_size}\0{stat.st_mtime_ns}")
    return xxhash.xxh3_128_hexdigest("\n".join(lines).encode())


def is_cached(model: Path, dtype: str) -> bool:
    return (cache_root() / cache_key(model, dtype)).is_dir()


def engine_for_model(model: Path, dtype: str, build: Builder | None = None) -> Path:
    """The cached engine of a model directory, built first if need be. One process builds, others wait for it."""
    root = cache_root()
    key = cache_key(model, dtype)
    engine = root / key
    if engine.is_dir():
        return engine
    build = build or _import_builder()
    with _locked(root / f"{key}.lock"):
        if not engine.is_dir():  # else another process built it while we waited
            partial = root / f"{key}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            try:
                build(model, partial, dtype)
                partial.rename(engine)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return engine


def open_cached(engine: Path) -> EngineDir:
    """Opens an engine of the cache. If it is damaged, the remedy is to remove it: it is built anew on the next use."""
    try:
        return open_engine(engine)
    except EngineError as error:
        fault = str(error).removesuffix(f"; {REMEDY}")
        raise EngineError(f"{fault}; remove {engine}, which is only a cache, and it is built again") from error


def require_build_extra(what: str) -> None:
    """MissingDependencyError unless the packages of the build extra are installed; imports none of them."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"{what} needs {' and '.join(missing)}, which this environment lacks; "
            "pip install 'tensorwright[build]', or build the engine elsewhere and copy its directory here"
        )


def _import_builder() -> Builder:
    require_build_extra("building an engine from a model directory")
    # The one import of the builder below runtime/: lazy, so that running an engine needs no build packages.
    from tensorwright.builder.build import build

    return lambda model, out, dtype: build(model, out, target="cpu", dtype=dtype)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock between processes and threads; the kernel releases it if we die."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise BuildError(
            f"{path.parent}: the engine cache cannot be written ({error}); set XDG_CACHE_HOME elsewhere"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
