"""Specifies the tensors of a Triton request, and reads one row of a batch by name and type.

This file uses only numpy and names, nothing of the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.parameter_checks import shown
from tensorwright.runtime.base.request_bounds import BAD_WORD_TOKENS

NUMPY: dict[str, Any] = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
}
"""Triton's types, in config.pbtxt's spelling without TYPE_, and numpy's types for them."""
KINDS: dict[str, str] = {
    name: {"b": "b", "f": "f", "O": "OSU"}.get(np.dtype(kind).kind, "iu") for name, kind in NUMPY.items()
}
"""The kinds of numpy arrays that an input of each type may have; another width of the same kind is accepted."""


@dataclass(frozen=True)
class Tensor:
    """One input or output of a model. dims are without the batch dimension."""

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    required: bool = False


def tensors(dtype: str, names: str, dims: tuple[int, ...] = (1,)) -> tuple[Tensor, ...]:
    """Returns tensors of one type and shape. names: their names, separated by spaces."""
    return tuple(Tensor(name, dtype, dims) for name in names.split())


def split_rows(values: Mapping[str, np.ndarray], batched: bool) -> list[Row]:
    """Returns one Row for each prompt. Raises InvalidRequestError for unequal batch dimensions.

    batched: whether every tensor has a first dimension for the batch, the same for all.
    """
    if not batched:
        return [Row(values)]
    sizes = {name: (value.shape[0] if value.ndim else 0) for name, value in values.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise InvalidRequestError(f"all inputs must have the same first dimension, the batch's, got {sizes}")
    rows = next(iter(sizes.values()))
    return [Row({name: value[index : index + 1] for name, value in values.items()}) for index in range(rows)]


class Row:
    """The inputs of one prompt, read by name and type. An InvalidRequestError names the wrong input."""

    def __init__(self, values: Mapping[str, np.ndarray]):
        self._values = values

    def has(self, name: str) -> bool:
        """Returns whether an input was sent. An empty tensor counts as not sent, for clients send empty tensors for
        unused inputs."""
        return name in self._values and self._values[name].size > 0

    def names(self) -> list[str]:
        return [name for name in self._values if self.has(name)]

    def sent(self) -> dict[str, np.ndarray]:
        """Returns the values of every input that was sent, by name."""
        return {name: self._values[name] for name in self.names()}

    def check(self, tensor: Tensor, batched: bool) -> None:
        """Raises InvalidRequestError if the input's type or shape is not that of `tensor`. The server checks this too,
        by config.pbtxt."""
        if not self.has(tensor.name):
            return
        value = self._values[tensor.name]
        if value.dtype.kind not in KINDS[tensor.dtype]:
            raise InvalidRequestError(
                f"input {tensor.name!r} has the wrong type, {value.dtype}: it must be {tensor.dtype}"
            )
        shape = value.shape[1:] if batched else value.shape
        if tensor.dims == (1,) and value.size > 1:
            raise InvalidRequestError(f"input {tensor.name!r} must hold one value per prompt, got {value.size}")
        fixed = tuple(-1 if want == -1 else got for want, got in zip(tensor.dims, shape, strict=False))
        if len(shape) != len(tensor.dims) or fixed != tensor.dims:
            wanted = ", ".join("n" if size == -1 else str(size) for size in tensor.dims)
            raise InvalidRequestError(
                f"input {tensor.name!r} must be {tensor.dtype} of shape [{wanted}] per prompt, got {list(shape)}"
            )

    def require(self, name: str, where: str) -> None:
        if not self.has(name):
            raise InvalidRequestError(f"input {name!r} is required by the {where} interface and was not sent")

    def integer(self, name: str) -> int | None:
        value = self._one(name, "iu")
        return None if value is None else int(value)

    def required_integer(self, name: str) -> int:
        """Returns the integer of an input that `require` has found."""
        return int(self._one(name, "iu"))

    def number(self, name: str) -> float | None:
        value = self._one(name, "f")
        return None if value is None else float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._one(name, "b")
        return default if value is None else bool(value)

    def text(self, name: str) -> str | None:
        value = self._one(name, "OSU")
        return None if value is None else _decode(name, value)

    def texts(self, name: str, most: int) -> list[str]:
        """Returns the texts of an input, without empty ones, with which clients fill up rows of unequal length.

        most: the most values of the list, empty ones included.
        """
        found = [_decode(name, value) for value in self._all(name, "OSU", most)]
        return [text for text in found if text]

    def integers(self, name: str, most: int) -> list[int]:
        return [int(value) for value in self._all(name, "iu", most)]

    def numbers(self, name: str, most: int) -> list[float]:
        return [float(value) for value in self._all(name, "f", most)]

    def array(self, name: str) -> np.ndarray | None:
        """Returns the values of an input, or None if it was not sent."""
        return self._values[name] if self.has(name) else None

    def _all(self, name: str, kinds: str, most: int) -> list[Any]:
        if not self.has(name):
            return []
        value = self._values[name]
        if value.dtype.kind not in kinds:
            raise InvalidRequestError(f"input {name!r} has the wrong type, {value.dtype}")
        check_size(name, value.size, most, "values")
        return list(value.reshape(-1))

    def _one(self, name: str, kinds: str) -> Any:
        if self.has(name) and self._values[name].size > 1:
            raise InvalidRequestError(f"input {name!r} must hold one value per prompt, got {self._values[name].size}")
        return next(iter(self._all(name, kinds, 1)), None)


def check_size(name: str, size: int, most: int, what: str) -> None:
    """Raises InvalidRequestError if an input has more than `most` values, before any of them is processed.

    what: the name of the values, in the plural.
    """
    if size > most:
        raise InvalidRequestError(f"input {name!r} must hold at most {most} {what} per prompt, got {size}")


def _decode(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode("utf-8")
    except (UnicodeDecodeError, TypeError) as error:
        raise InvalidRequestError(f"input {name!r} must be UTF-8 text: {error}") from error


def word_list(row: Row, name: str, most: int) -> list[list[int]]:
    """Reads words as lists of token ids from TensorRT-LLM's [2, n] encoding. The first row has the ids of all words one
    after the other. The second row has the end of each word, filled up with -1. Raises InvalidRequestError.

    most: the most words. Row.check has checked type and shape before.
    """
    value = row.array(name)
    if value is None:
        return []
    check_size(name, value.size, 2 * most * BAD_WORD_TOKENS, "numbers")
    flat, ends = value.reshape(2, -1).tolist()
    check_size(name, sum(end != -1 for end in ends), most, "words")
    words, begin = [], 0
    for end in ends:
        if end == -1:
            break
        if not begin < end <= len(flat):
            raise InvalidRequestError(
                f"input {name!r}: its second row must hold the ends of words, rising from 1 to at most {len(flat)}, "
                f"then -1, got {shown(ends)}"
            )
        words.append(flat[begin:end])
        begin = end
    return words
