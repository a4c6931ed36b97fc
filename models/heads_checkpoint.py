"""Opens a checkpoint of heads that propose tokens to a model (EAGLE-3, Medusa): config.json, weights in safetensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorwright.engine_format.file_names import CONFIG
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.models.checkpoint import HEADS, find_checkpoint, read_json_file, weight_files
from tensorwright.models.dtypes import Tensor
from tensorwright.models.safetensors_file import SafetensorsFile
from tensorwright.models.stored_tensors import StoredTensors

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
"""The names of EAGLE-3 heads in config.json: of the authors, of vLLM, of speculators."""
EAGLE3, MEDUSA = "eagle3", "medusa"
MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"
"""The file of the authors' Medusa heads."""


class HeadsCheckpoint:
    """An opened checkpoint of heads. Raises CheckpointError, and UnsupportedModelError for heads of another kind.

    path: the directory. config: the content of config.json. kind: EAGLE3 or MEDUSA. names: the names of all tensors,
    sorted.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config: dict[str, Any] = read_json_file(path / CONFIG, "heads have one: give the directory that holds it")
        self.kind = self._kind()
        authors = path / MEDUSA_WEIGHTS
        files = [SafetensorsFile(authors)] if self.kind == MEDUSA and authors.is_file() else weight_files(path)
        self.stored = StoredTensors(path, files)
        self.names = self.stored.names

    def _kind(self) -> str:
        named = self.config.get("architectures")
        known = isinstance(named, list) and any(name in ARCHITECTURES for name in named)
        if known or self.config.get("speculators_model_type") == EAGLE3:
            return EAGLE3
        if self.config.get("model_type") == MEDUSA or "medusa_num_heads" in self.config:
            return MEDUSA
        raise UnsupportedModelError(
            f"{self.path}: heads must be of EAGLE-3 (architectures {', '.join(ARCHITECTURES)}) or Medusa "
            f"(medusa_num_heads, or model_type medusa), config.json says {named!r}; a whole model can be a draft at "
            "run time: --speculative draft,model=ENGINE"
        )

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
