"""Says what a kind of quantized checkpoint gives: the model's matrices, each decoded from several stored tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.models.dtypes import Ranges, Tensor
from tensorwright.models.stored_tensors import StoredTensors
from tensorwright.number_checks import MAX_INT32, is_int


class Decoded(ABC):
    """A matrix of the model that the checkpoint stores as several tensors.

    parts: the names of these tensors. shape, dtype: those of the matrix when it is decoded.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    def column_order(self) -> np.ndarray | None:
        """Returns the numbers of the columns in the order of their groups, [K]; None where groups are neighbours."""
        return None

    @abstractmethod
    def read_part(self, ranges: Ranges) -> Tensor:
        """Returns the part inside `ranges`, which has one interval per dimension. It decodes no more than that part and
        what shares blocks or bytes with it."""


@dataclass(frozen=True)
class Quantization:
    """What becomes of a checkpoint's tensors under the quantization that its config.json names.

    summary: the kind in words, such as "gptq 4 bits g128". matrices: by the name that each has in a checkpoint that is
    not quantized. unread: the stored tensors that say nothing of weights, such as scales of activations.
    """

    summary: str
    matrices: Mapping[str, Decoded]
    unread: frozenset[str]


class Refusals:
    """Makes the errors of one checkpoint. where: its directory, which begins every message."""

    def __init__(self, where: str, method: str):
        self.where, self.method = where, method

    def unsupported(self, what: str) -> UnsupportedModelError:
        """Returns the refusal of a checkpoint that may be sound, but is of a form that is not read."""
        return UnsupportedModelError(
            f"{self.where}: weights quantized with {self.method} are not read where {what}; give the checkpoint before "
            "its quantization, or one of another form (docs/quantization.md)"
        )

    def broken(self, what: str) -> CheckpointError:
        """Returns the error for tensors and config.json that contradict each other."""
        return CheckpointError(
            f"{self.where}: is no checkpoint of {self.method}: {what}; download its files again, config.json included"
        )

    def whole_number(self, config: Mapping[str, Any], key: str, default: int | None = None) -> int:
        """Returns a whole number of the config. Raises CheckpointError for anything else."""
        value = config.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INT32:
            raise self.broken(f"{key} of its quantization_config must be a whole number, not {value!r:.100}")
        return value

    def two_sizes(self, config: Mapping[str, Any], key: str) -> tuple[int, int] | None:
        """Returns the rows and columns of a block; None if the config names none. Raises CheckpointError for anything
        else."""
        value = config.get(key)
        if value is None:
            return None
        if not (isinstance(value, list) and len(value) == 2 and all(is_int(v) and 1 <= v <= MAX_INT32 for v in value)):
            raise self.broken(f"{key} of its quantization_config must be two sizes, not {value!r:.100}")
        return value[0], value[1]

    def require_numbers(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises CheckpointError for a matrix without elements, which has no scales either."""
        if 0 in shape:
            raise self.broken(f"{name} must hold numbers, is {list(shape)}")

    def require(self, stored: StoredTensors, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
        """Raises CheckpointError unless a tensor is stored with this shape and one of these types."""
        if name not in stored:
            raise self.broken(f"{name} is missing")
        if stored.shape(name) != shape or stored.dtype(name) not in dtypes:
            came = f"{stored.dtype(name)} {list(stored.shape(name))}"
            raise self.broken(f"{name} must be {' or '.join(dtypes)} {list(shape)}, is {came}")
