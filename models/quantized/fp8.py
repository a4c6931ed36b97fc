"""Reads checkpoints of E4M3 floats with a scale for each block (DeepSeek, Qwen), for each row, or for the tensor.

    X.weight             float8_e4m3fn [..., N, K]
    X.weight_scale_inv   float [..., N / rows, K / columns] of blocks, rounded up; a weight is its float times the scale
weight_scale_inv is called weight_scale, scale or qscale_weight by some writers. A matrix without a scale is stored in
another type, and is read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tensorwright.models.dtypes import Ranges, Tensor, narrow_values, to_float32
from tensorwright.models.quantized.interface import Decoded, Quantization, Refusals
from tensorwright.models.stored_tensors import StoredTensors

_SCALES = ("float32", "bfloat16", "float16", "float8_e8m0fnu")


def read_fp8(config: Mapping[str, Any], stored: StoredTensors, refusals: Refusals) -> Quantization:
    """Returns the matrices of a checkpoint. config: its quantization_config."""
    block = refusals.two_sizes(config, "weight_block_size")
    names = [name for name in stored.names if stored.dtype(name) == "float8_e4m3fn"]
    matrices = {name: _matrix(name, block, stored, refusals) for name in names}
    unread = [name for name in stored.names if name.endswith((".activation_scale", ".input_scale", ".qscale_act"))]
    packed = [name for name in stored.names if stored.dtype(name) in ("int8", "float4_e2m1fn_x2")]
    if packed:
        raise refusals.unsupported(f"{packed[0]} is {stored.dtype(packed[0])}, and not float8_e4m3fn")
    summary = "fp8 per tensor" if block is None else f"fp8 blocks {block[0]}x{block[1]}"
    return Quantization(summary, matrices, frozenset(unread))


def _matrix(name: str, block: tuple[int, int] | None, stored: StoredTensors, refusals: Refusals) -> Decoded:
    module, _, last = name.rpartition(".")
    companions = [f"{name}_scale_inv", f"{name}_scale"]
    companions += [f"{module}.scale", f"{module}.qscale_weight"] if last == "weight" else []
    scale = next((companion for companion in companions if companion in stored), None)
    if scale is None:
        raise refusals.broken(f"{companions[0]} is missing")
    shape = stored.shape(name)
    if len(shape) not in (2, 3):
        raise refusals.broken(f"{name} must be a matrix, or a matrix for each expert, is {list(shape)}")
    refusals.require_numbers(name, shape)
    grid = stored.shape(scale)
    if len(grid) <= 1 and grid in ((), (1,)):
        blocks, grid = shape[-2:], (*(1 for _ in shape[:-2]), 1, 1)
    elif grid == (*shape[:-1], 1):
        blocks = (1, shape[-1])
    elif block is not None:
        blocks = block
    else:
        raise refusals.broken(f"{scale} is {list(grid)}, and no weight_block_size says which blocks these are")
    wanted = (*shape[:-2], -(-shape[-2] // blocks[0]), -(-shape[-1] // blocks[1]))
    if grid != wanted and any(size != 1 for size in grid):
        raise refusals.broken(f"{scale} must be {list(wanted)} for blocks of {list(blocks)}, is {list(grid)}")
    if stored.dtype(scale) not in _SCALES:
        raise refusals.broken(f"{scale} must be {' or '.join(_SCALES)}, is {stored.dtype(scale)}")
    return BlockScaled((name, scale), shape, grid, blocks, stored)


@dataclass(frozen=True)
class BlockScaled(Decoded):
    """A matrix, or one for each expert, of E4M3 floats with a scale for each block. Its products are float32.

    grid: the shape of the scales, one size for each of `shape`; a size of 1 counts for all.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    blocks: tuple[int, ...]
    stored: StoredTensors
    dtype: str = "float32"

    def read_part(self, ranges: Ranges) -> Tensor:
        values = self.codes(ranges)
        *experts, rows, columns = ranges
        at_rows = np.arange(*rows) // self.blocks[0]
        at_columns = np.arange(*columns) // self.blocks[1]
        for inside, of_expert in self._scales(experts):
            # The scales of one row of blocks are spread over the columns first, for many rows share them.
            values[inside] *= of_expert[:, at_columns][at_rows]
        return Tensor("float32", values)

    def codes(self, ranges: Ranges) -> np.ndarray:
        """Returns the numbers of a part without their scales, float32."""
        return narrow_values("float8_e4m3fn")[self.stored.read(self.parts[0]).part(ranges).data]

    def row_scales(self, ranges: Ranges) -> np.ndarray:
        """Returns the scales of each row, float32 [..., rows, blocks of columns]. ranges: all but the columns'."""
        *experts, rows = ranges
        at_rows = np.arange(*rows) // self.blocks[0]
        spread = np.empty((*(end - start for start, end in ranges), self.grid[-1]), np.float32)
        for inside, of_expert in self._scales(experts):
            spread[inside] = of_expert[at_rows]
        return spread

    def _scales(self, experts: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """Yields for each expert of some ranges its place in them, and its scales, float32 by blocks."""
        scales = _scale_values(self.stored.read(self.parts[1])).reshape(self.grid)
        for place in product(*(range(*span) for span in experts)):
            of_expert = scales[tuple(i if size > 1 else 0 for i, size in zip(place, self.grid, strict=False))]
            yield tuple(i - span[0] for i, span in zip(place, experts, strict=True)), of_expert


def _scale_values(tensor: Tensor) -> np.ndarray:
    if tensor.dtype == "float8_e8m0fnu":
        return narrow_values(tensor.dtype)[tensor.data]
    return to_float32(tensor)
