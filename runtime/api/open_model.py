"""Opens what a user names: an engine, a model directory or a model of the hub.

The engine of a model is built on its first use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from tensorwright.engine_format.engine_config import is_engine
from tensorwright.engine_format.file_names import CONFIG
from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.errors import InvalidOptionError
from tensorwright.hub import check_revision, download_model, is_hub_name
from tensorwright.options.build import BuildChoices
from tensorwright.runtime.api.model_cache import engine_for_model, open_cached
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine


def find_model(model: str | Path, revision: str | None = None) -> Path:
    """Returns the directory that `model` names: an engine or a model directory. A model of the hub is downloaded.

    A path that does not exist comes back unchanged, and opening it raises the error. revision: a branch, tag or commit
    of the hub.
    """
    if not isinstance(model, (str, Path)) or not str(model).strip():
        raise InvalidOptionError(f"LLM: must be given the path of an engine or of a model directory, got {model!r}")
    check_revision(model, revision)
    path = Path(os.path.expanduser(model))
    # The functions of os.path return False for a name that no file can have, but the methods of Path raise.
    if not os.path.lexists(path) and is_hub_name(str(model)):
        return download_model(str(model), revision)
    return path


def is_model(path: Path) -> bool:
    """Whether the path is a Hugging Face model directory, from which an engine must be built."""
    return os.path.isdir(path) and not is_engine(path) and os.path.exists(path / CONFIG)


def open_model(path: Path, choices: BuildChoices) -> tuple[EngineDir, IO[str] | None]:
    """Opens the engine, or the cached engine of a model directory. Returns it with its lease in the cache, or None: the
    cache does not remove the engine while the lease is open."""
    first_use = is_model(path)
    choices.check(first_use)
    if first_use:
        cached = engine_for_model(path, choices)
        return open_cached(cached.path), cached.lease
    engine = open_engine(path, read_tokenizer=True)
    _check_built(engine, choices)
    return engine, None


def _check_built(engine: EngineDir, choices: BuildChoices) -> None:
    """Raises InvalidOptionError unless the engine was built as the choices say. A choice that is left out fits any
    engine."""
    path, dtype, quantize, cache = engine.path, choices.dtype, choices.quantize, choices.kv_cache_dtype
    if dtype not in ("auto", engine.dtype):
        raise InvalidOptionError(f"dtype={dtype!r}: {path} is an engine built as {engine.dtype}; build another one")
    if quantize is not None and parse_spec(quantize) not in engine.quantize_specs.values():
        built = " or ".join(map(repr, engine.quantize_specs))
        built = f"built as {built}" if built else "without quantized weights"
        raise InvalidOptionError(f"quantize={quantize!r}: {path} is an engine {built}; build another one")
    if cache not in (AS_ACTIVATIONS, engine.config.kv_cache_dtype):
        raise InvalidOptionError(
            f"kv_cache_dtype={cache!r}: {path} is an engine with a KV cache of {engine.config.kv_cache_dtype!r}; build "
            "another one"
        )
    if choices.max_seq_len not in (None, engine.max_seq_len):
        raise InvalidOptionError(
            f"max_seq_len={choices.max_seq_len}: {path} is an engine of at most {engine.max_seq_len} tokens; build "
            "another one"
        )
