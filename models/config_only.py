"""Stands in for a checkpoint of which there is config.json alone: it says which tensors there would be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import CheckpointError
from tensorwright.models.checkpoint import Checkpoint, read_json_file, require_family
from tensorwright.models.dtypes import Tensor
from tensorwright.models.quantized.registry import CONFIG_KEYS
from tensorwright.models.stored_tensors import StoredTensors, TensorInfo


class _Declared:
    """A file of tensors that does not exist."""

    def __init__(self, path: Path, tensors: Mapping[str, TensorInfo]):
        self.path, self.tensors = path, tensors

    def read(self, name: str) -> Tensor:
        raise CheckpointError(f"{self.path}: {name} has no values, for there is a config alone")


class ConfigOnly(Checkpoint):
    """A model of which there is a config.json, under any name. Every read of a tensor raises CheckpointError.

    It has no tensors before `declare`. quantized_by: the method of quantization that the config names, which says
    nothing of the tensors here; None if there is none.
    """

    def __init__(self, file: Path):
        self.path, self._file, self.channel_scales = file.parent, file, {}
        self.config = read_json_file(file, "give a directory with config.json, or that file")
        require_family(self.config, file)
        self.generation_config = {}
        self.stored, self.quantization, self._tokenizer = StoredTensors(file, []), None, None
        self.names = ()

    @property
    def config_file(self) -> Path:
        return self._file

    @property
    def quantized_by(self) -> str | None:
        named = self._config_value(*CONFIG_KEYS)
        return None if not isinstance(named, dict) else str(named.get("quant_method", "an unnamed method"))

    def declare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Says the shapes of all tensors, by name. Their type is that of the model."""
        dtype, end, tensors = self.native_dtype, 0, {}
        for name, shape in shapes.items():
            begin, count = end, 1
            for size in shape:
                count *= size
            end = begin + count * ITEM_BYTES[dtype]
            tensors[name] = TensorInfo(dtype, shape, begin, end)
        self.stored = StoredTensors(self._file, [_Declared(self._file, tensors)])
        self.names = self.stored.names
