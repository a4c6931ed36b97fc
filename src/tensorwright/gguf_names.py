"""Finds GGUF files by their names: a file that a user gives, one of a directory or of the hub, the parts of a model.

Any room may import this file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tensorwright.errors import CheckpointError

SUFFIX = ".gguf"
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
"""The name of a part: that of the model, the number of the part from 1, the number of parts."""
MAX_PARTS = 1000
_NO_MODEL = ("mmproj", "imatrix")
"""What the names of files begin with that lie beside models: encoders of images, statistics of a quantizer."""
_SHOWN = 12


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


def choose_gguf(model: str, files: Iterable[str], form: str | None = None, file: str | None = None) -> list[str]:
    """Returns the file of a model of the hub, or its parts in order, of all `files` there.

    model: the name to show. form: what the name of the file ends with before the suffix, such as Q4_0, in any case.
    file: the file itself. Without both it is the only one. Raises CheckpointError if no file fits, or more than one.
    """
    files = sorted(files)
    found = [name for name in files if name.endswith(SUFFIX) and not _is_later_part(_base(name))]
    found = [name for name in found if not _base(name).lower().startswith(_NO_MODEL)]
    if file is not None:
        fitting, what = [file] if file in files else [], f"no file {file}"
    else:
        fitting = [name for name in found if form is None or _has_form(_base(name), form)]
        what = f"{len(fitting) or 'no'} GGUF files" + ("" if form is None else f" of the form {form}")
    if len(fitting) != 1:
        shown = fitting or found
        names = ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")
        remedy = f"name one as {model}/FILE: {names}" if shown else "take another model"
        raise CheckpointError(f"{model}: has {what}; {remedy}")
    parts = [part.as_posix() for part in gguf_parts(Path(fitting[0]))]
    absent = [part for part in parts if part not in files]
    if absent:
        raise CheckpointError(f"{model}: lacks {absent[0]}, a part of {fitting[0]}; take another model")
    return parts


def _has_form(name: str, form: str) -> bool:
    """Returns whether the name of a file, or of a first part, ends with the form, behind a mark that ends a word."""
    match = PART.fullmatch(name)
    stem = (match[1] if match else name.removesuffix(SUFFIX)).lower()
    return stem == form.lower() or stem.endswith(tuple(f"{mark}{form.lower()}" for mark in "-._"))


def _base(file: str) -> str:
    return file.rpartition("/")[2]


def _is_later_part(name: str) -> bool:
    match = PART.fullmatch(name)
    return match is not None and int(match[2]) > 1
