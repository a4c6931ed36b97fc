"""Reads checkpoints of bitsandbytes: blocks of NF4 or FP4 numbers, and whole numbers of 8 bits with a scale per row.

Of a linear layer [N, K] of 4 bits in blocks of S neighbours, counted through all rows:
    weight                               uint8 [N * K / 2, 1]  two codes in a byte, the first in the high half
    weight.quant_map                     float32 [16]          the number of each code
    weight.absmax                        float32 [blocks]      the scale of each block
    weight.quant_state.bitsandbytes__X   uint8                 JSON: blocksize, shape, dtype; X is nf4 or fp4
With double quantization the scales are uint8 codes in blocks of their own, and nested_offset of the JSON is added:
    weight.absmax, weight.nested_quant_map float32 [256], weight.nested_absmax float32 [blocks of blocks]
Of a layer of 8 bits (LLM.int8()):
    weight  int8 [N, K]    SCB  float32 [N], the largest weight of each row    weight_format  0, which is row by row
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.json_text import read_json
from tensorwright.models.dtypes import Ranges, Tensor, convert
from tensorwright.models.quantized.interface import Decoded, Quantization, Refusals
from tensorwright.models.quantized.scaled_codes import ScaledCodes, Span
from tensorwright.models.stored_tensors import StoredTensors
from tensorwright.number_checks import MAX_INT32, is_int

PER_127 = np.float32(7.874015718698502e-3)
"""1 / 127 as bitsandbytes has it."""
MAX_STATE_BYTES = 1 << 16
_STATE = ".quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_SCB, _FORMAT = "SCB", "weight_format"


def read_bitsandbytes(config: Mapping[str, Any], stored: StoredTensors, refusals: Refusals) -> Quantization:
    """Returns the matrices of a checkpoint. Its tensors say how each is stored; config names no more than defaults."""
    matrices: dict[str, Decoded] = {}
    kinds: dict[str, None] = {}
    for name in stored.names:
        weight, _, kind = name.partition(_STATE)
        if kind:
            matrices[weight] = found = _four_bits(weight, name, kind, stored, refusals)
            kinds[f"{kind} double" if found.nested is not None else kind] = None
        elif name.endswith(f".{_SCB}"):
            weight = f"{name.removesuffix(_SCB)}weight"
            matrices[weight] = _eight_bits(weight, name, stored, refusals)
            kinds["int8"] = None
    if not matrices:
        raise refusals.broken("no tensor has a quant_state or SCB")
    return Quantization(f"bitsandbytes {' and '.join(kinds)}", matrices, frozenset())


@dataclass(frozen=True)
class Nested:
    """The second quantization of scales: code -> number, times the scale of its block, plus an offset."""

    absmax: str
    quant_map: str
    block: int
    offset: float


@dataclass(frozen=True)
class FourBits(Decoded):
    """A matrix of numbers of a table of 16, times the scale of their block.

    The product is computed in float32 and rounded to the type of the matrix, as the kernels of CUDA do.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    stored: StoredTensors
    weight: str
    block: int
    nested: Nested | None

    def read_part(self, ranges: Ranges) -> Tensor:
        rows, columns = ranges
        k = self.shape[1]
        first, last = rows[0] * k, rows[1] * k
        packed = self.stored.read(self.weight).data.reshape(-1).view(np.uint8)[first // 2 : -(-last // 2)]
        codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)[first % 2 : first % 2 + last - first]
        values = self.stored.read(f"{self.weight}.quant_map").data[codes]
        begin, end = first // self.block, -(-last // self.block)
        skip = first - begin * self.block
        values = values * np.repeat(self._scales(begin, end), self.block)[skip : skip + last - first]
        whole = values.reshape(rows[1] - rows[0], k)[:, slice(*columns)]
        return convert(Tensor("float32", np.ascontiguousarray(whole)), self.dtype)

    def _scales(self, begin: int, end: int) -> np.ndarray:
        """Returns the scales of blocks [begin, end), float32."""
        scales = self.stored.read(f"{self.weight}.absmax").data[begin:end]
        if self.nested is None:
            return scales
        outer = self.stored.read(self.nested.absmax).data[np.arange(begin, end) // self.nested.block]
        return self.stored.read(self.nested.quant_map).data[scales] * outer + np.float32(self.nested.offset)


@dataclass(frozen=True)
class EightBits(ScaledCodes):
    """A matrix of codes times the largest weight of their row, times 1 / 127: in this order, in float32.

    largest: of rows, float32 [rows, 1]. An engine that keeps the codes has the product of both numbers as its scale.
    """

    largest: Callable[[Span], np.ndarray] = field(kw_only=True)

    def read_part(self, ranges: Ranges) -> Tensor:
        rows, columns = ranges
        values = np.ascontiguousarray(self.codes(rows, columns)).astype(np.float32)
        values *= self.largest(rows)
        values *= PER_127
        return Tensor("float32", values)


def _four_bits(weight: str, state: str, kind: str, stored: StoredTensors, refusals: Refusals) -> FourBits:
    if kind not in _KINDS:
        raise refusals.unsupported(f"the numbers of {weight} are of the kind {kind!r:.100}, and not nf4 or fp4")
    facts = _state(state, stored, refusals)
    shape, dtype = facts.get("shape"), facts.get("dtype")
    block = _block(facts, "blocksize", state, refusals)
    if not (isinstance(shape, list) and len(shape) == 2 and all(is_int(n) and 0 < n <= MAX_INT32 for n in shape)):
        raise refusals.broken(f"the shape of {state} must be two sizes, not {shape!r:.100}")
    if dtype not in DTYPES:
        raise refusals.broken(f"the dtype of {state} must be {' or '.join(DTYPES)}, not {dtype!r:.100}")
    count = prod(shape)
    blocks = -(-count // block)
    if weight not in stored or stored.bytes(weight) != -(-count // 2):
        raise refusals.broken(f"{weight} must hold {count} numbers of 4 bits")
    refusals.require(stored, f"{weight}.quant_map", (16,), ("float32",))
    parts = [weight, state, f"{weight}.quant_map", f"{weight}.absmax"]
    nested = None
    if f"{weight}.nested_absmax" in stored:
        nested = _nested(weight, facts, blocks, stored, refusals)
        parts += [nested.absmax, nested.quant_map]
    refusals.require(stored, f"{weight}.absmax", (blocks,), ("uint8" if nested else "float32",))
    return FourBits(tuple(parts), (shape[0], shape[1]), dtype, stored, weight, block, nested)


def _nested(weight: str, facts: Mapping[str, Any], blocks: int, stored: StoredTensors, refusals: Refusals) -> Nested:
    block, offset = _block(facts, "nested_blocksize", weight, refusals), facts.get("nested_offset")
    if not isinstance(offset, (int, float)) or isinstance(offset, bool) or not np.isfinite(offset):
        raise refusals.broken(f"the nested_offset of {weight} must be a number, not {offset!r:.100}")
    absmax, table = f"{weight}.nested_absmax", f"{weight}.nested_quant_map"
    refusals.require(stored, absmax, (-(-blocks // block),), ("float32",))
    refusals.require(stored, table, (256,), ("float32",))
    return Nested(absmax, table, block, float(offset))


def _block(facts: Mapping[str, Any], key: str, name: str, refusals: Refusals) -> int:
    value = facts.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 16 <= value <= 1 << 16:
        raise refusals.broken(f"the {key} of {name} must be from 16 to 65536, not {value!r:.100}")
    return value


def _state(name: str, stored: StoredTensors, refusals: Refusals) -> dict[str, Any]:
    """Returns the JSON of a tensor."""
    if stored.dtype(name) != "uint8" or stored.bytes(name) > MAX_STATE_BYTES:
        raise refusals.broken(f"{name} must be JSON in at most {MAX_STATE_BYTES} bytes")
    try:
        facts = read_json(stored.read(name).data.tobytes().decode("utf-8"))
    except ValueError as error:
        raise refusals.broken(f"{name} is not JSON ({error})") from error
    if not isinstance(facts, dict):
        raise refusals.broken(f"{name} must be a JSON object")
    return facts


def _eight_bits(weight: str, scale: str, stored: StoredTensors, refusals: Refusals) -> Decoded:
    if weight not in stored or stored.dtype(weight) != "int8" or len(stored.shape(weight)) != 2:
        raise refusals.broken(f"{weight} must be an int8 matrix beside {scale}")
    n, k = stored.shape(weight)
    refusals.require_numbers(weight, (n, k))
    refusals.require(stored, scale, (n,), ("float32",))
    parts = [weight, scale]
    if (kind := f"{weight.removesuffix('weight')}{_FORMAT}") in stored:
        parts.append(kind)
        if stored.bytes(kind) != 1 or stored.read(kind).data.reshape(-1).view(np.uint8)[0]:
            raise refusals.unsupported(f"{weight} does not lie row by row ({_FORMAT})")

    def codes(rows: Span, columns: Span) -> np.ndarray:
        return stored.read(weight).part((rows, columns)).data

    def largest(rows: Span) -> np.ndarray:
        return stored.read(scale).data[slice(*rows), None]

    def scales(rows: Span, groups: Span) -> np.ndarray:
        return (largest(rows) * PER_127)[:, slice(*groups)]

    return EightBits(tuple(parts), (n, k), "float32", codes, scales, None, k, largest=largest)
