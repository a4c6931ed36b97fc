"""Decodes the blocks in which GGUF files hold numbers: 32 or 256 neighbours of a row, with the scales that they share.

Each function takes blocks, uint8 [N, bytes of a block], and computes with the operations, the order and the float32 of
the `gguf` package (gguf/quants.py), which are those of ggml (ggml-quants.c). Halves are float16.

    Q4_0 Q5_0 Q8_0   32 whole numbers of 4, 5 or 8 bits, times a half
    IQ4_NL           32 numbers of a table of 16 whole numbers, times a half
    MXFP4            32 doubled E2M1 numbers, times half of a power of two
    Q4_1 Q5_1        32 whole numbers from 0, times a half, plus a half
    Q2_K to Q6_K     256 whole numbers in groups of 16 or 32, whose scales, and minima, are whole numbers times a half
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tensorwright.models.dtypes import narrow_values

Decode: TypeAlias = Callable[[np.ndarray], np.ndarray]

SUPER = 256
"""The numbers of a block of a K-quant."""

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_DOUBLED = (2 * narrow_values("float4_e2m1fn_x2")).astype(np.int8)
_HALVED = np.ldexp(np.float32(1), np.arange(256) - 128)  # 255, which is NaN in OCP's MX, is a number in ggml.


@dataclass(frozen=True)
class CodedBlock:
    """A type of blocks whose numbers are whole numbers times one scale. codes: int8 [N, numbers]; scale: float32
    [N]."""

    name: str
    size: int
    bytes: int
    codes: Decode
    scale: Decode


@dataclass(frozen=True)
class SummedBlock:
    """A type of blocks whose numbers are decoded at once. decode: float32 [N, numbers]."""

    name: str
    size: int
    bytes: int
    decode: Decode


BlockType: TypeAlias = CodedBlock | SummedBlock


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Returns the float16 at a byte of each block, as float32 [N, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _first_half(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0)[:, 0]


def _fields(packed: np.ndarray, run: int, bits: int, count: int) -> np.ndarray:
    """Returns `count` numbers of `bits` bits from every byte, uint8: of each run of bytes the lowest bits first."""
    shifts = (bits * np.arange(count, dtype=np.uint8)).reshape(1, 1, count, 1)
    runs = packed.reshape(len(packed), packed.shape[1] // run, 1, run)
    return (runs >> shifts & np.uint8((1 << bits) - 1)).reshape(len(packed), packed.shape[1] * count)


def _bits(packed: np.ndarray) -> np.ndarray:
    """Returns the bits of bytes, lowest first, uint8 [N, 8 * bytes]."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return _fields(blocks[:, 2:], 16, 4, 2).view(np.int8) - np.int8(8)


def _five_bits(blocks: np.ndarray, high: int) -> np.ndarray:
    """Returns 32 numbers from 0 to 31: the highest bits are at byte `high`, the others after them."""
    return _fields(blocks[:, high + 4 :], 16, 4, 2) | _bits(blocks[:, high : high + 4]) << np.uint8(4)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    return _five_bits(blocks, 2).view(np.int8) - np.int8(16)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return IQ4_VALUES[_fields(blocks[:, 2:], 16, 4, 2)]


def _mxfp4(blocks: np.ndarray) -> np.ndarray:
    return _DOUBLED[_fields(blocks[:, 1:], 16, 4, 2)]


def _mxfp4_scale(blocks: np.ndarray) -> np.ndarray:
    return _HALVED[blocks[:, 0]]


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * _fields(blocks[:, 4:], 16, 4, 2).astype(np.float32) + _half(blocks, 2)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0) * _five_bits(blocks, 4).astype(np.float32) + _half(blocks, 2)


def _grouped(numbers: np.ndarray, scales: np.ndarray, minima: np.ndarray | None = None) -> np.ndarray:
    """Returns numbers [N, 256] times the scales of their groups [N, groups], less their minima if there are any."""
    groups = numbers.astype(np.float32).reshape(*scales.shape, SUPER // scales.shape[1])
    groups *= scales[..., None]
    if minima is not None:
        groups -= minima[..., None]
    return groups.reshape(numbers.shape)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    shared = blocks[:, :16]
    scales = _half(blocks, 80) * (shared & 15).astype(np.float32)
    minima = _half(blocks, 82) * (shared >> 4).astype(np.float32)
    return _grouped(_fields(blocks[:, 16:80], 32, 2, 4), scales, minima)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    low = _fields(blocks[:, 96:104], 8, 4, 2)  # 16 scales of 6 bits: 4 low ones each, then 2 high ones
    high = _fields(blocks[:, 104:108], 4, 2, 4)
    scales = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
    below = (_fields(blocks[:, :32], 32, 1, 8) ^ 1) << np.uint8(2)  # A bit that is not set takes 4 away.
    numbers = _fields(blocks[:, 32:96], 32, 2, 4).view(np.int8) - below.view(np.int8)
    return _grouped(numbers, _half(blocks, 108) * scales.astype(np.float32))


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns 8 scales and 8 minima of 6 bits, float32 [N, 8] each, from 12 bytes.

    Bytes 0 to 3 hold the first four scales, bytes 4 to 7 the first four minima, and in their two highest bits those of
    the other four, whose low bits are in bytes 8 to 11.
    """
    scales, minima, low = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    later_scales = low & 15 | scales >> 2 & 0x30
    later_minima = low >> 4 | minima >> 2 & 0x30
    both = (np.concatenate(pair, axis=1) for pair in ((scales & 63, later_scales), (minima & 63, later_minima)))
    first, second = (numbers.astype(np.float32) for numbers in both)
    return first, second


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    return _grouped(_fields(blocks[:, 16:], 32, 4, 2), _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    numbers = _fields(blocks[:, 48:], 32, 4, 2) | _fields(blocks[:, 16:48], 32, 1, 8) << np.uint8(4)
    return _grouped(numbers, _half(blocks, 0) * scales, _half(blocks, 2) * minima)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    numbers = _fields(blocks[:, :128], 64, 4, 2) | _fields(blocks[:, 128:192], 32, 2, 4) << np.uint8(4)
    return _grouped(numbers.view(np.int8) - np.int8(32), _half(blocks, 208) * scales)


BLOCKS: dict[int, BlockType] = {
    2: CodedBlock("Q4_0", 32, 18, _q4_0, _first_half),
    3: SummedBlock("Q4_1", 32, 20, _q4_1),
    6: CodedBlock("Q5_0", 32, 22, _q5_0, _first_half),
    7: SummedBlock("Q5_1", 32, 24, _q5_1),
    8: CodedBlock("Q8_0", 32, 34, _q8_0, _first_half),
    10: SummedBlock("Q2_K", SUPER, 84, _q2_k),
    11: SummedBlock("Q3_K", SUPER, 110, _q3_k),
    12: SummedBlock("Q4_K", SUPER, 144, _q4_k),
    13: SummedBlock("Q5_K", SUPER, 176, _q5_k),
    14: SummedBlock("Q6_K", SUPER, 210, _q6_k),
    20: CodedBlock("IQ4_NL", 32, 18, _iq4_nl, _first_half),
    39: CodedBlock("MXFP4", 32, 17, _mxfp4, _mxfp4_scale),
}
"""The types that are read, by their numbers in a file (enum ggml_type of ggml.h)."""

PLAIN = {0: "float32", 1: "float16", 28: "float64", 30: "bfloat16"}
"""The element types of tensors without blocks."""

UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
    41: "Q1_0",
}  # fmt: skip
"""The names of types that are refused."""
