"""Finds GGUF files by their names: a file that a user gives, the one of a directory, the parts of a model.

Any room may import this file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tensorwright.errors import CheckpointError

SUFFIX = ".gguf"
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
"""The name of a part: that of the model, the number of the part from 1, the number of parts."""
MAX_PARTS = 1000


def is_gguf(path: Path) -> bool:
    """Returns whether the path is a file of that name."""
    return path.name.endswith(SUFFIX) and os.path.isfile(path)


def gguf_of(path: Path) -> Path | None:
    """Returns the path itself if it is a GGUF file, or that of a directory without safetensors; None for others.

    Of a model in several parts it is the first. Raises CheckpointError for a directory with several models.
    """
    if is_gguf(path):
        return path
    if not os.path.isdir(path):
        return None
    names = os.listdir(path)
    found = sorted(name for name in names if name.endswith(SUFFIX) and not _is_later_part(name))
    if not found or any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return None
    if len(found) > 1:
        raise CheckpointError(f"{path}: holds {len(found)} GGUF files, {', '.join(found[:5])}; give one of them")
    return path / found[0]


def gguf_parts(path: Path) -> list[Path]:
    """Returns the names that the parts of a model have, in order, whether the files exist or not. path: the first."""
    match = PART.fullmatch(path.name)
    count = int(match[3]) if match else 1
    if match is None or int(match[2]) != 1 or not 1 < count <= MAX_PARTS:
        return [path]
    return [path.with_name(f"{match[1]}-{number:05}-of-{match[3]}{SUFFIX}") for number in range(1, count + 1)]


def _is_later_part(name: str) -> bool:
    match = PART.fullmatch(name)
    return match is not None and int(match[2]) > 1
