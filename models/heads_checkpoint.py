"""Opens a checkpoint of heads that propose tokens to a model (EAGLE-3): config.json and weights in safetensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorwright.engine_format.file_names import CONFIG
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.models.checkpoint import HEADS, find_checkpoint, read_json_file, weight_files
from tensorwright.models.dtypes import Tensor
from tensorwright.models.stored_tensors import StoredTensors

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
"""The names of EAGLE-3 heads in config.json: of the authors, of vLLM, of speculators."""


class HeadsCheckpoint:
    """An opened checkpoint of heads. Raises CheckpointError, and UnsupportedModelError for what is no EAGLE-3 head.

    path: the directory. config: the content of config.json. names: the names of all tensors, sorted.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config: dict[str, Any] = read_json_file(path / CONFIG, "heads have one: give the directory that holds it")
        named = self.config.get("architectures")
        known = isinstance(named, list) and any(name in ARCHITECTURES for name in named)
        if not known and self.config.get("speculators_model_type") != "eagle3":
            raise UnsupportedModelError(
                f"{path}: heads must be of EAGLE-3 (architectures {', '.join(ARCHITECTURES)}), config.json says "
                f"{named!r}; a whole model can be a draft at run time: --speculative draft,model=ENGINE"
            )
        self.stored = StoredTensors(path, weight_files(path))
        self.names = self.stored.names

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    @staticmethod
    def name_in_build(name: str) -> str:
        """Returns the name that a tensor has beside the model's."""
        return HEADS + name

    @property
    def source_files(self) -> list[Path]:
        """The files that heads are made from, sorted: config.json and the weights."""
        return sorted({self.path / CONFIG, *(file.path for file in self.stored.files)})

    def read(self, name: str) -> Tensor:
        """Returns a tensor as a read-only view of its file."""
        return self.stored.read(name)

    def require(self, shapes: dict[str, tuple[int, ...]], dtypes: Sequence[str]) -> None:
        """Checks that these tensors are stored with these shapes, each in one of `dtypes`. Raises CheckpointError."""
        wrong = [f"  {name}: missing" for name in shapes if name not in self]
        for name, shape in shapes.items():
            if name in self and self.stored.shape(name) != shape:
                wrong.append(f"  {name}: stored as {list(self.stored.shape(name))}, config.json implies {list(shape)}")
            elif name in self and self.stored.dtype(name) not in dtypes:
                wrong.append(f"  {name}: stored as {self.stored.dtype(name)}")
        if wrong:
            raise CheckpointError(f"{self.path}: {len(wrong)} weights do not fit the heads:\n" + "\n".join(wrong[:10]))


def open_heads_checkpoint(place: str | Path, revision: str | None = None) -> HeadsCheckpoint:
    """Opens the heads at `place`: a directory, or a hub name like org/name."""
    return HeadsCheckpoint(find_checkpoint(place, revision))
