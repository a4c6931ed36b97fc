"""Reads checkpoints of GPTQ, as AutoGPTQ and GPTQModel write them: 2, 3, 4 or 8 bits, with or without act-order.

Of a linear layer [N, K] with G groups:
    qweight  int32 [K * bits / 32, N]   the codes, packed along K
    qzeros   int32 [G, N * bits / 32]   the zero points, packed along N; format "gptq" stores each less one
    scales   float [G, N]
    g_idx    int32 [K]                  the group of every column
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.models.dtypes import to_float32
from tensorwright.models.quantized.bits import unpack_bits, words_of
from tensorwright.models.quantized.interface import Decoded, Quantization, Refusals
from tensorwright.models.quantized.scaled_codes import ScaledCodes, Span
from tensorwright.models.stored_tensors import StoredTensors

_BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2")


def read_gptq(config: Mapping[str, Any], stored: StoredTensors, refusals: Refusals) -> Quantization:
    """Returns the matrices of a checkpoint. config: its quantization_config."""
    kind = config.get("checkpoint_format") or config.get("format") or "gptq"
    if kind not in _FORMATS:
        raise refusals.unsupported(f"the format is {kind!r:.100}, and neither {' nor '.join(_FORMATS)}")
    bits = refusals.whole_number(config, "bits")
    if bits not in _BITS:
        raise refusals.unsupported(f"a weight has {bits} bits")
    matrices = {
        f"{name.removesuffix('.qweight')}.weight": _matrix(name.removesuffix("qweight"), bits, kind, stored, refusals)
        for name in stored.names
        if name.endswith(".qweight")
    }
    group = refusals.whole_number(config, "group_size", -1)
    order = " act-order" if config.get("desc_act") else ""
    summary = f"gptq {bits} bits {f'g{group}' if group > 0 else 'per channel'}{order}"
    return Quantization(summary, matrices, frozenset())


def _matrix(base: str, bits: int, kind: str, stored: StoredTensors, refusals: Refusals) -> Decoded:
    names = tuple(base + part for part in ("qweight", "qzeros", "scales", "g_idx"))
    weight, zeros, scales, order = names
    absent = [name for name in names if name not in stored]
    if absent:
        raise refusals.broken(f"{absent[0]} is missing")
    if len(stored.shape(scales)) != 2 or len(stored.shape(order)) != 1 or 0 in stored.shape(scales):
        raise refusals.broken(f"{scales} must be a matrix, and {order} a vector")
    (groups, n), (k,) = stored.shape(scales), stored.shape(order)
    if stored.shape(weight) != (words_of(k, bits), n):  # GPTQModel may give a layer bits of its own.
        bits = next((own for own in _BITS if stored.shape(weight) == (words_of(k, own), n)), bits)
    refusals.require_numbers(order, (k,))
    refusals.require(stored, weight, (words_of(k, bits), n), ("int32",))
    refusals.require(stored, zeros, (groups, words_of(n, bits)), ("int32",))
    refusals.require(stored, scales, (groups, n), DTYPES)
    refusals.require(stored, order, (k,), ("int32",))

    def codes(rows: Span, columns: Span) -> np.ndarray:
        return unpack_bits(stored.read(weight).data[:, slice(*rows)].T, bits, *columns)

    def zero_points(rows: Span, columns: Span) -> np.ndarray:
        words = stored.read(zeros).data[slice(*columns)]
        return _zero_points(words, bits, rows, less_one=kind == "gptq").T

    def scales_of(rows: Span, columns: Span) -> np.ndarray:
        tensor = stored.read(scales)
        return to_float32(tensor.part((columns, rows))).T

    find_order = lru_cache(maxsize=1)(partial(_order, order, groups, stored, refusals))
    return ScaledCodes(names, (n, k), stored.dtype(scales), codes, scales_of, zero_points, -(-k // groups), find_order)


def _zero_points(words: np.ndarray, bits: int, rows: Span, *, less_one: bool) -> np.ndarray:
    """Returns the zero points [groups, rows]. less_one: whether each was stored less one.

    GPTQModel adds the one to all numbers of a word in a single sum, and takes it off so when it writes. A zero point of
    0 thus borrows from its neighbour, and is found again only by the same sum. Numbers of 3 bits are treated one by
    one.
    """
    if less_one and 8 % bits == 0:
        ones = sum(1 << shift for shift in range(0, 32, bits))
        words = words.view(np.uint32) + np.uint32(ones)
    numbers = unpack_bits(words, bits, *rows)
    return (numbers + 1) & 7 if less_one and bits == 3 else numbers


def _order(name: str, groups: int, stored: StoredTensors, refusals: Refusals) -> np.ndarray:
    order = stored.read(name).data
    if order.size and not 0 <= order.min() <= order.max() < groups:
        raise refusals.broken(f"{name} must name groups from 0 to {groups - 1}, has {order.min()} to {order.max()}")
    return order
