"""Finds the tensors of a checkpoint in its files: safetensors, or GGUF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tensorwright.errors import CheckpointError
from tensorwright.models.dtypes import Tensor


@dataclass(frozen=True)
class TensorInfo:
    """What a file's header says of one tensor. `begin` and `end` are byte offsets into the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile(Protocol):
    """A file of tensors whose header was read and checked."""

    @property
    def path(self) -> Path: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    def read(self, name: str) -> Tensor: ...


class StoredTensors:
    """The tensors as the files have them. `names` are sorted. Nothing is read before `read`.

    Raises CheckpointError if two files hold a tensor of one name.
    """

    def __init__(self, path: Path, files: Sequence[TensorFile]):
        self.path, self.files = path, files
        self._home: dict[str, TensorFile] = {}
        for file in files:
            for name in file.tensors:
                if name in self._home:
                    raise CheckpointError(
                        f"{path}: tensor {name!r} is in both {self._home[name].path.name} and {file.path.name}; "
                        "remove the stale shard"
                    )
                self._home[name] = file
        self.names: tuple[str, ...] = tuple(sorted(self._home))

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file(name).tensors[name].shape

    def dtype(self, name: str) -> str:
        return self.file(name).tensors[name].dtype

    def read(self, name: str) -> Tensor:
        """Returns a tensor as a read-only view of its file."""
        return self.file(name).read(name)

    def bytes(self, name: str) -> int:
        """Returns the size of a tensor."""
        info = self.file(name).tensors[name]
        return info.end - info.begin

    def file(self, name: str) -> TensorFile:
        """Returns the file that holds a tensor. Raises CheckpointError if none does."""
        if name not in self._home:
            raise CheckpointError(f"{self.path}: no tensor {name!r} among the {len(self._home)} stored")
        return self._home[name]
