"""Opens what a user names: an engine, a model directory, a GGUF file or a model of the hub.

The engine of a model is built on its first use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from tensorwright.engine_format.engine_config import is_engine
from tensorwright.engine_format.file_names import CONFIG
from tensorwright.errors import InvalidOptionError
from tensorwright.gguf_names import gguf_of, is_gguf
from tensorwright.hub import check_revision, download_model, is_hub_name
from tensorwright.options.build_choices import BuildChoices
from tensorwright.runtime.api.model_cache import engine_for_model, open_cached
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.ranks.under_mpi import own_rank


def find_model(model: str | Path, revision: str | None = None) -> Path:
    """Returns the path that `model` names: an engine, a model directory or a GGUF file. One of the hub is downloaded.

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
    """Whether the path is a Hugging Face model directory or a GGUF file, from which an engine must be built."""
    if is_gguf(path):
        return True
    return os.path.isdir(path) and not is_engine(path) and (os.path.exists(path / CONFIG) or gguf_of(path) is not None)


def open_model(path: Path, choices: BuildChoices) -> tuple[EngineDir, IO[str] | None]:
    """Opens the engine, or the cached engine of a model directory. Returns it with its lease in the cache, or None: the
    cache does not remove the engine while the lease is open."""
    first_use = is_model(path)
    choices.check(first_use)
    if first_use:
        cached = engine_for_model(path, choices.without_files())
        return open_cached(cached.path), cached.lease
    engine = open_engine(path, read_tokenizer=True, rank=own_rank())
    choices.check_built(engine.config, engine.path)
    return engine, None
