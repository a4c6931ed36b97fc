"""Reads checkpoints of compressed-tensors: whole numbers of 1 to 8 bits, packed or not, and E4M3 floats.

Of a linear layer [N, K] in format pack-quantized:
    weight_packed      int32 [N, K * bits / 32]   the codes plus 2^(bits - 1), packed along K
    weight_shape       [2]                        N and K
    weight_scale       float [N, G]               one for each of G groups, or for each row ([N, 1]), or for all ([1])
    weight_zero_point  int32 [N * bits / 32, G]   packed along N likewise; or int8 [N, G]; absent where all are 0
    weight_g_idx       int32 [K]                  the group of every column; absent, or -1, where neighbours share one
In formats int-quantized, float-quantized and naive-quantized the codes are `weight`, int8 or float8_e4m3fn [N, K], and
scales may be those of blocks of rows and columns. A layer without weight_scale is not quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.models.dtypes import narrow_values, to_float32
from tensorwright.models.quantized.bits import unpack_bits, words_of
from tensorwright.models.quantized.interface import Decoded, Quantization, Refusals
from tensorwright.models.quantized.scaled_codes import ReadPart, ScaledCodes, Span
from tensorwright.models.stored_tensors import StoredTensors

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
_STRATEGIES = ("tensor", "channel", "group", "block")
_SCALE = "weight_scale"
_UNREAD = tuple(
    f".{part}_{what}"
    for part in ("input", "output", "q", "k", "v")
    for what in ("scale", "zero_point", "global_scale", "g_idx")
)


@dataclass(frozen=True)
class _Scheme:
    """How config.json says that a group of layers is quantized."""

    kind: str
    bits: int
    strategy: str
    group: int | None
    blocks: tuple[int, int] | None

    def __str__(self) -> str:
        size = {"group": f"g{self.group}", "block": "blocks {}x{}".format(*self.blocks or ("?", "?"))}
        return f"{self.kind}{self.bits} {size.get(self.strategy, f'per {self.strategy}')}"


def read_compressed_tensors(config: Mapping[str, Any], stored: StoredTensors, refusals: Refusals) -> Quantization:
    """Returns the matrices of a checkpoint. config: its quantization_config."""
    schemes = _schemes(config, refusals)
    matrices: dict[str, Decoded] = {}
    for name in stored.names:
        if name.endswith(f".{_SCALE}"):
            base = name.removesuffix(_SCALE)
            matrices[f"{base}weight"] = _matrix(base, schemes, stored, refusals)
    words = " and ".join(dict.fromkeys(map(str, schemes)))
    unread = frozenset(name for name in stored.names if name.endswith(_UNREAD))
    return Quantization(f"compressed-tensors {words}", matrices, unread)


def _schemes(config: Mapping[str, Any], refusals: Refusals) -> list[_Scheme]:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(one, dict) for one in groups.values()):
        raise refusals.broken("config_groups of its quantization_config must name groups of layers")
    formats = [config.get("format"), *(group.get("format") for group in groups.values())]
    for kind in formats:
        if kind is not None and kind not in _FORMATS:
            raise refusals.unsupported(f"the format is {kind!r:.100}, and not {', '.join(_FORMATS[:-2])}")
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
        raise refusals.unsupported(f"the sparsity format is {sparsity['format']!r:.100}")
    if config.get("transform_config"):
        raise refusals.unsupported("weights are rotated (transform_config)")
    return [_scheme(group["weights"], refusals) for group in groups.values() if isinstance(group.get("weights"), dict)]


def _scheme(weights: Mapping[str, Any], refusals: Refusals) -> _Scheme:
    kind, bits = weights.get("type", "int"), refusals.whole_number(weights, "num_bits", 8)
    if not 1 <= bits <= 8 or kind not in ("int", "float") or (kind == "float" and bits != 8):
        raise refusals.unsupported(f"a weight is a {kind!r:.100} of {bits} bits")
    blocks, group = refusals.two_sizes(weights, "block_structure"), weights.get("group_size")
    strategy = weights.get("strategy") or ("tensor" if group is None else "channel" if group == -1 else "group")
    if strategy not in _STRATEGIES:
        raise refusals.unsupported(f"the strategy of weights is {strategy!r:.100}")
    size = refusals.whole_number(weights, "group_size", 0) if group is not None else None
    return _Scheme(kind, bits, strategy, size, blocks)


def _matrix(base: str, schemes: list[_Scheme], stored: StoredTensors, refusals: Refusals) -> Decoded:
    scale, packed, plain = (base + part for part in (_SCALE, "weight_packed", "weight"))
    if stored.dtype(scale) not in DTYPES:
        raise refusals.broken(f"{scale} must be {' or '.join(DTYPES)}, is {stored.dtype(scale)}")
    if packed in stored:
        (n, k), bits, names, codes = _packed(base, schemes, stored, refusals)
    elif plain in stored and stored.dtype(plain) in ("int8", "float8_e4m3fn") and len(stored.shape(plain)) == 2:
        (n, k), bits, names, codes = stored.shape(plain), 8, [plain], _plain(plain, stored)
    elif plain in stored:
        raise refusals.unsupported(f"{plain} is {stored.dtype(plain)} {list(stored.shape(plain))} beside its scale")
    else:
        raise refusals.broken(f"{plain} is missing, and so is {packed}")
    refusals.require_numbers(plain, (n, k))
    names.append(scale)
    rows_per_scale, group, groups = _grid(scale, (n, k), schemes, stored, refusals)
    zeros = None
    if (zero := f"{base}weight_zero_point") in stored:
        names.append(zero)
        zeros = _zero_points(zero, bits, -(-n // rows_per_scale), groups, rows_per_scale, stored, refusals)
    order = None
    if (index := f"{base}weight_g_idx") in stored:
        names.append(index)
        refusals.require(stored, index, (k,), ("int32", "int64"))
        order = _order(index, groups, group, stored, refusals)
    shape = (-(-n // rows_per_scale), groups)

    def scales(rows: Span, columns: Span) -> np.ndarray:
        return _repeated(to_float32(stored.read(scale)).reshape(shape)[:, slice(*columns)], rows, rows_per_scale)

    return ScaledCodes(tuple(names), (n, k), stored.dtype(scale), codes, scales, zeros, group, order)


def _packed(
    base: str, schemes: list[_Scheme], stored: StoredTensors, refusals: Refusals
) -> tuple[tuple[int, int], int, list[str], ReadPart]:
    """Returns the shape of a packed matrix, the bits of a code, the names of its tensors, and what reads its codes."""
    packed, shape = base + "weight_packed", base + "weight_shape"
    refusals.require(stored, shape, (2,), ("int64", "int32"))
    n, k = (int(size) for size in stored.read(shape).data)
    if n < 1 or k < 1:
        raise refusals.broken(f"{shape} must hold two sizes, has {n} and {k}")
    widths = dict.fromkeys(scheme.bits for scheme in schemes if scheme.kind == "int")
    fitting = [bits for bits in widths if stored.shape(packed) == (n, words_of(k, bits))]
    if len(fitting) != 1 or stored.dtype(packed) != "int32":
        raise refusals.broken(
            f"{packed}, {stored.dtype(packed)} {list(stored.shape(packed))}, must hold {n} rows of {k} numbers of "
            f"{' or '.join(map(str, widths))} bits"
        )
    bits = fitting[0]

    def codes(rows: Span, columns: Span) -> np.ndarray:
        numbers = unpack_bits(stored.read(packed).data[slice(*rows)], bits, *columns)
        return numbers.astype(np.int16) - (1 << bits - 1)

    return (n, k), bits, [packed, shape], codes


def _plain(name: str, stored: StoredTensors) -> ReadPart:
    def codes(rows: Span, columns: Span) -> np.ndarray:
        part = stored.read(name).part((rows, columns))
        return narrow_values(part.dtype)[part.data] if part.dtype == "float8_e4m3fn" else part.data

    return codes


def _grid(
    scale: str, shape: tuple[int, int], schemes: list[_Scheme], stored: StoredTensors, refusals: Refusals
) -> tuple[int, int, int]:
    """Returns how many rows and how many columns share a scale, and how many groups of columns there are."""
    (n, k), grid = shape, stored.shape(scale)
    if grid in ((), (1,), (1, 1)):
        return n, k, 1
    if grid == (n,):
        return 1, k, 1
    if len(grid) == 2 and grid[0] == n and grid[1] > 0 and k % grid[1] == 0:
        return 1, k // grid[1], grid[1]
    for rows, columns in (scheme.blocks for scheme in schemes if scheme.blocks is not None):
        if grid == (-(-n // rows), -(-k // columns)):
            return rows, columns, grid[1]
    raise refusals.broken(f"{scale} is {list(grid)}, which does not fit a matrix {list(shape)}")


def _zero_points(
    name: str, bits: int, count: int, groups: int, each: int, stored: StoredTensors, refusals: Refusals
) -> ReadPart:
    """Returns what reads the zero points of `count` rows, each of which counts for `each` rows of the matrix."""
    if stored.dtype(name) == "int32":
        refusals.require(stored, name, (words_of(count, bits), groups), ("int32",))
    elif stored.dtype(name) != "int8" or int(np.prod(stored.shape(name))) != count * groups:
        raise refusals.broken(
            f"{name} must be int8, or packed int32, of {count * groups} numbers, is {stored.dtype(name)} "
            f"{list(stored.shape(name))}"
        )

    def zeros(rows: Span, columns: Span) -> np.ndarray:
        data = stored.read(name).data
        if data.dtype == np.int8:
            return _repeated(data.reshape(count, groups)[:, slice(*columns)], rows, each)
        numbers = unpack_bits(data[:, slice(*columns)].T, bits, 0, count).T.astype(np.int16) - (1 << bits - 1)
        return _repeated(numbers, rows, each)

    return zeros


def _repeated(table: np.ndarray, rows: Span, each: int) -> np.ndarray:
    """Returns the rows of a matrix of a table that has one for `each` of them."""
    return table[slice(*rows)] if each == 1 else table[np.arange(*rows) // each]


def _order(name: str, groups: int, group: int, stored: StoredTensors, refusals: Refusals) -> Any:
    """Returns what returns the group of every column."""

    @lru_cache(maxsize=1)
    def order() -> np.ndarray:
        index = stored.read(name).data
        if (index == -1).any():
            return np.arange(len(index)) // group
        if not 0 <= index.min() <= index.max() < groups:
            raise refusals.broken(f"{name} must name groups from 0 to {groups - 1}, or -1")
        return index

    return order
