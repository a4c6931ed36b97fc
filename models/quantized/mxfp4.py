"""Reads checkpoints of MXFP4 (gpt-oss): the experts' matrices in floats of 4 bits, 32 of which share a power of two.

    X_blocks   uint8 [E, N, K / 32, 16]   two E2M1 floats in a byte, the first in the low half
    X_scales   uint8 [E, N, K / 32]       the exponent of the power of two, plus 127
become X [E, K, N] as the model has it. bfloat16 holds every weight exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.models.dtypes import Ranges, Tensor, bfloat16_bits, narrow_values
from tensorwright.models.quantized.interface import Decoded, Quantization, Refusals
from tensorwright.models.quantized.scaled_codes import Span
from tensorwright.models.stored_tensors import StoredTensors

GROUP = 32
"""The neighbours of a row that share a power of two."""

DOUBLED = (2 * narrow_values("float4_e2m1fn_x2")).astype(np.int8)
"""Twice the number of each code, which is whole."""
_HALVED = np.append(np.ldexp(np.float32(1), np.arange(255) - 128), np.float32(np.nan))
"""Half of the power of two of each byte: the scales of doubled numbers. 255 is NaN."""


def read_mxfp4(config: Mapping[str, Any], stored: StoredTensors, refusals: Refusals) -> Quantization:
    """Returns the matrices of a checkpoint."""
    matrices: dict[str, Decoded] = {}
    for name in stored.names:
        if not name.endswith("_blocks"):
            continue
        matrix = name.removesuffix("_blocks")
        shape = stored.shape(name)
        if len(shape) != 4:
            raise refusals.broken(f"{name} must have 4 dimensions, has {list(shape)}")
        refusals.require(stored, name, (*shape[:3], GROUP // 2), ("uint8",))
        refusals.require(stored, f"{matrix}_scales", shape[:3], ("uint8",))
        matrices[matrix] = Mxfp4((name, f"{matrix}_scales"), (shape[0], shape[2] * GROUP, shape[1]), stored)
    return Quantization("mxfp4", matrices, frozenset())


@dataclass(frozen=True)
class Mxfp4(Decoded):
    """The matrices [E, K, N] of the experts of a layer, stored transposed."""

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    stored: StoredTensors
    dtype: str = "bfloat16"

    def read_part(self, ranges: Ranges) -> Tensor:
        experts, columns, rows = ranges
        groups = slice(columns[0] // GROUP, -(-columns[1] // GROUP))
        at = (slice(*experts), slice(*rows), groups)
        blocks, scales = self._stored(at)
        values = narrow_values("float4_e2m1fn_x2")
        floats = np.stack([values[blocks & 15], values[blocks >> 4]], axis=-1).reshape(*scales.shape, GROUP)
        floats *= narrow_values("float8_e8m0fnu")[scales][..., None]
        skip = columns[0] - groups.start * GROUP
        whole = floats.reshape(*scales.shape[:2], -1)[:, :, skip : skip + columns[1] - columns[0]]
        return Tensor("bfloat16", bfloat16_bits(whole).transpose(0, 2, 1))

    def doubled(self, experts: Span, rows: Span) -> tuple[np.ndarray, np.ndarray]:
        """Returns twice the numbers of these rows, which are whole, int8 [E, N, K], and half of their powers of two,
        float32 [E, N, groups]."""
        blocks, scales = self._stored((slice(*experts), slice(*rows)))
        numbers = np.stack([DOUBLED[blocks & 15], DOUBLED[blocks >> 4]], axis=-1)
        return numbers.reshape(*scales.shape[:2], -1), _HALVED[scales]

    def _stored(self, at: tuple[slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        blocks, scales = (self.stored.read(name).data[at] for name in self.parts)
        return blocks, scales
