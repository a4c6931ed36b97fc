"""Reads checkpoints of AWQ in its format "gemm": 4 bits, groups, zero points.

Of a linear layer [N, K] with groups of S columns:
    qweight  int32 [K, N / 8]       the codes, packed along N
    qzeros   int32 [K / S, N / 8]   the zero points, packed likewise
    scales   float [K / S, N]
The eight numbers of a word stand in the order of ORDER, from the lowest bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.models.dtypes import to_float32
from tensorwright.models.quantized.bits import unpack_bits
from tensorwright.models.quantized.interface import Decoded, Quantization, Refusals
from tensorwright.models.quantized.scaled_codes import ScaledCodes, Span
from tensorwright.models.stored_tensors import StoredTensors

_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""The place within its word of each of eight neighbours: the order of the numbers is 0, 2, 4, 6, 1, 3, 5, 7."""


def read_awq(config: Mapping[str, Any], stored: StoredTensors, refusals: Refusals) -> Quantization:
    """Returns the matrices of a checkpoint. config: its quantization_config."""
    kind = str(config.get("version") or config.get("format") or config.get("checkpoint_format") or "gemm").lower()
    bits = refusals.whole_number(config, "bits", config.get("w_bit", 4))
    if kind != "gemm":
        raise refusals.unsupported(f"the format is {kind!r:.100}, and not gemm")
    if bits != 4:
        raise refusals.unsupported(f"a weight has {bits} bits, and not 4")
    bases = [name.removesuffix("qweight") for name in stored.names if name.endswith(".qweight")]
    scaled = [name for name in stored.names if name.endswith(".scales") and f"{name[:-6]}qweight" not in stored]
    if scaled:
        raise refusals.unsupported(f"activations are scaled too ({scaled[0]})")
    matrices = {f"{base}weight": _matrix(base, stored, refusals) for base in bases}
    group = refusals.whole_number(config, "group_size", config.get("q_group_size", -1))
    return Quantization(f"awq 4 bits {f'g{group}' if group > 0 else 'per channel'}", matrices, frozenset())


def _matrix(base: str, stored: StoredTensors, refusals: Refusals) -> Decoded:
    weight, zeros, scales = names = tuple(base + part for part in ("qweight", "qzeros", "scales"))
    absent = [name for name in names if name not in stored]
    if absent:
        raise refusals.broken(f"{absent[0]} is missing")
    if any(len(stored.shape(name)) != 2 or 0 in stored.shape(name) for name in names):
        raise refusals.broken(f"{', '.join(names)} must be matrices")
    (k, _), (groups, n) = stored.shape(weight), stored.shape(scales)
    if n % 8 or k % groups:
        raise refusals.broken(f"{weight} has {n} rows, and {k} columns in {groups} groups")
    refusals.require(stored, weight, (k, n // 8), ("int32",))
    refusals.require(stored, zeros, (groups, n // 8), ("int32",))
    refusals.require(stored, scales, (groups, n), DTYPES)

    def codes(rows: Span, columns: Span) -> np.ndarray:
        return _unpack(stored.read(weight).data[slice(*columns)], rows).T

    def zero_points(rows: Span, columns: Span) -> np.ndarray:
        return _unpack(stored.read(zeros).data[slice(*columns)], rows).T

    def scales_of(rows: Span, columns: Span) -> np.ndarray:
        tensor = stored.read(scales)
        return to_float32(tensor.part((columns, rows))).T

    return ScaledCodes(names, (n, k), stored.dtype(scales), codes, scales_of, zero_points, k // groups)


def _unpack(words: np.ndarray, numbers: Span) -> np.ndarray:
    """Returns these numbers of every row of words, uint8."""
    first, last = numbers[0] // 8, -(-numbers[1] // 8)
    taken = unpack_bits(words[:, first:last], 4, 0, 8 * (last - first)).reshape(len(words), -1, 8)
    ordered = taken[:, :, _PLACES].reshape(len(words), -1)
    return ordered[:, numbers[0] - 8 * first : numbers[1] - 8 * first]
