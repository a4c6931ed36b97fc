"""Tensors of a Triton request as the interfaces see them: specifications, and typed reading of one row of a batch.

Plain numpy and names; nothing here knows of the server.
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
"""Triton's types as config.pbtxt has them without TYPE_, and numpy's."""
KINDS: dict[str, str] = {
    name: {"b": "b", "f": "f", "O": "OSU"}.get(np.dtype(kind).kind, "iu") for name, kind in NUMPY.items()
}
"""Numpy's kinds of arrays that are taken for a type: one of another width says the same."""


@dataclass(frozen=True)
class Tensor:
    """One input or output of a model. dims are without the batch dimension."""

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    required: bool = False


def tensors(dtype: str, names: str, dims: tuple[int, ...] = (1,)) -> tuple[Tensor, ...]:
    """Several alike, their names in one text."""
    return tuple(Tensor(name, dtype, dims) for name in names.split())


def split_rows(values: Mapping[str, np.ndarray], batched: bool) -> list[Row]:
    """One Row for each prompt. batched: every tensor has a batch dimension in front, the same for all."""
    if not batched:
        return [Row(values)]
    sizes = {name: (value.shape[0] if value.ndim else 0) for name, value in values.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise InvalidRequestError(f"all inputs must have the same first dimension, the batch's, got {sizes}")
    rows = next(iter(sizes.values()))
    return [Row({name: value[index : index + 1] for name, value in values.items()}) for index in range(rows)]


class Row:
    """The inputs of one prompt, read by name and type; InvalidRequestError names the input that is wrong."""

    def __init__(self, values: Mapping[str, np.ndarray]):
        self._values = values

    def has(self, name: str) -> bool:
        """An empty tensor counts as not sent: clients send those for what they do not use."""
        return name in self._values and self._values[name].size > 0

    def names(self) -> list[str]:
        return [name for name in self._values if self.has(name)]

    def sent(self) -> dict[str, np.ndarray]:
        """The values of every input that was sent, by name."""
        return {name: self._values[name] for name in self.names()}

    def check(self, tensor: Tensor, batched: bool) -> None:
        """Whether what came for it is of its type and shape. The server looks at that too, by config.pbtxt."""
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
        """As integer(), of an input that require() has found."""
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
        """All of them but the empty ones, with which clients fill up rows of unequal length. most: values, empty ones
        included, as for all lists here."""
        found = [_decode(name, value) for value in self._all(name, "OSU", most)]
        return [text for text in found if text]

    def integers(self, name: str, most: int) -> list[int]:
        return [int(value) for value in self._all(name, "iu", most)]

    def numbers(self, name: str, most: int) -> list[float]:
        return [float(value) for value in self._all(name, "f", most)]

    def array(self, name: str) -> np.ndarray | None:
        """The values of an input, None if it was not sent."""
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
    """Before any work for each of so many. what: they are, in the plural."""
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
    """Words as token ids out of TensorRT-LLM's [2, n] encoding: the ids of all words one after the other, and below
    them where each word ends, filled up with -1. most: words. Type and shape are looked at before (Row.check)."""
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
