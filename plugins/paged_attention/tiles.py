"""Decides how paged attention is cut up on a GPU: checks the op's attributes, and chooses the tiles of its kernels.

The numbers are counted. docs/gpu.md has what an H100 made of them.
* Decode reads each KV byte once, so bandwidth bounds it. A program computes one tile while the next is loaded: at
  head_dim 128 in 16 bits 32 KiB, and three programs fit an SM 90, two an SM 80, one an SM 86, 89 or 120. The bytes
  being loaded must be bandwidth x latency: about 20 KiB for each of 132 SMs at 3.3 TB/s and 800 ns.
  64 sequences x 4096 positions x 8 KV heads are 4096 programs of 512 positions, 10 rounds of what 132 SMs hold; one
  sequence of 32768 is 512 programs, more than one round. Partial results, written and read again, are group / 256 of
  the KV bytes: 1.6% for a group of 4.
* Prefill: per tile of 128 rows x 64 positions at head_dim 128, 4.2 million operations on tensor cores and 8192 exp2.
  Tiles behind the diagonal or before the window are skipped, only those on an edge are masked: with a group of 4 a tile
  is 32 tokens, and one or two of up to 128 tiles of 8192 positions.
* head_dim is padded to a power of two in registers and dots, not in memory: 80 and 96 pay 128's arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import ceil_div, next_power_of_2

BLOCK_SIZE = 32
"""Positions of a page, unless the attributes say otherwise."""
BLOCK_SIZES = (16, 32, 64, 128)
HEAD_DIMS = range(16, 257)
SPLIT = 512
"""Positions of the shortest split where no list says another (work_list.py). Its partial result costs group / 256 of
the 16-bit K and V that it reads."""
DECODE_PROGRAMS = 512
"""The approximate number of programs for one long sequence: two to four for each of 132 SMs."""


@dataclass(frozen=True)
class Attention:
    """The checked attributes and types of one node."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    softcap: float
    has_sinks: bool
    int8_kv: bool
    block_size: int
    dtype: str
    has_slopes: bool = False
    e4m3_kv: bool = False
    """Whether the bytes of int8 pages are E4M3 numbers."""
    chunked: bool = False
    """Whether the window begins at a multiple of its length, and does not slide."""

    @staticmethod
    def of(attrs: Mapping[str, Any], dtype: str) -> Attention:
        """Reads the attributes of a PagedAttention node; block_size, has_slopes, e4m3_kv and chunked are optional.
        `dtype` is q's."""
        self = Attention(
            heads=int(attrs["heads"]),
            kv_heads=int(attrs["kv_heads"]),
            head_dim=int(attrs["head_dim"]),
            scale=float(attrs["scale"]),
            window=int(attrs["window"]),
            softcap=float(attrs["softcap"]),
            has_sinks=bool(attrs["has_sinks"]),
            int8_kv=bool(attrs["int8_kv"]),
            block_size=int(attrs.get("block_size", BLOCK_SIZE)),
            dtype=dtype,
            has_slopes=bool(attrs.get("has_slopes", False)),
            e4m3_kv=bool(attrs.get("e4m3_kv", False)),
            chunked=bool(attrs.get("chunked", False)),
        )
        self._check()
        return self

    def _check(self) -> None:
        require(self.dtype in ("float32", "float16", "bfloat16"), "q must be float32, float16 or bfloat16", self.dtype)
        require(self.head_dim in HEAD_DIMS, "head_dim must be 16 to 256", self.head_dim)
        require(self.block_size in BLOCK_SIZES, f"block_size must be one of {BLOCK_SIZES}", self.block_size)
        grouped = self.kv_heads > 0 and self.heads > 0 and self.heads % self.kv_heads == 0
        require(grouped, f"{self.heads} heads must be a multiple of the KV heads", self.kv_heads)
        require(self.scale > 0, "scale must be positive", self.scale)
        require(self.window >= 0 and self.softcap >= 0, "window and softcap must not be negative", self)
        require(self.int8_kv or not self.e4m3_kv, "pages of E4M3 numbers must be int8", self)
        require(self.window > 0 or not self.chunked, "chunks must have a length", self.window)

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def vectors(self) -> dict[str, bool]:
        """Whether there are the operands that have one number for each head."""
        return {"sinks": self.has_sinks, "slopes": self.has_slopes}

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def block_d(self) -> int:
        return next_power_of_2(self.head_dim)

    @property
    def most_splits(self) -> int:
        return min(max(next_power_of_2(DECODE_PROGRAMS // self.kv_heads), 8), 128)

    def splits(self, max_blocks: int) -> int:
        """Returns the most splits of a sequence of this many blocks, as plan_splits of gpu_decode.py makes them."""
        bound = ceil_div(max_blocks * self.block_size, SPLIT)
        if self.window:
            bound = min(bound, ceil_div(self.window, SPLIT) + 1)
        return max(min(bound, self.most_splits), 1)


def require(holds: bool, what: str, got: Any) -> None:
    if not holds:
        raise KernelError(f"paged attention on a GPU: {what}, got {got}")


@dataclass(frozen=True)
class Tile:
    """Rows of queries (tokens x `heads` of a KV head) by positions, and the warps and stages of a program."""

    block_m: int
    block_n: int
    heads: int
    num_warps: int
    num_stages: int


def prefill_tile(op: Attention, sm: int) -> Tile:
    """Returns the fastest known tile for code of this SM.

    On most SMs it is the largest that (nearly) spills no registers, with the most stages that the 99 KiB of SM 86, 89
    and 120 hold. SM 90 has 227 KiB, and a group of 4 warps multiplies 64 rows at once: its tiles were timed on an H100
    (docs/gpu.md). float32 has no tensor cores; int8 is widened in registers.
    """
    heads = op.group
    if op.dtype == "float32":
        return Tile(16, 32, min(heads, 16), 8, 2)
    if sm == 90:
        block_m, block_n, warps, stages = _HOPPER_PREFILL[op.int8_kv, op.block_d > 128]
        return Tile(block_m, block_n, min(heads, block_m), warps, stages)
    block_m, block_n, stages = 128, 64, 3
    if op.int8_kv:
        block_m, block_n = 64, 32
    elif op.block_d == 128 and op.window:
        block_n = 32
    elif op.block_d == 256:
        block_m, block_n, stages = 64, 32, 2
    return Tile(block_m, block_n, min(heads, block_m), 8, stages)


_HOPPER_PREFILL = {
    (False, False): (128, 64, 8, 3),
    (False, True): (128, 64, 8, 2),
    (True, False): (64, 128, 4, 2),
    (True, True): (64, 32, 4, 3),
}
"""Rows, positions, warps and stages on SM 90, by (int8 cache, heads over 128)."""


def decode_tile(op: Attention, sm: int) -> Tile:
    """Returns a tile whose rows are the heads of a group, at least 16. The next tile loads while one is computed.

    On an H100, 2 warps in place of 4 read an int8 cache 29 % faster and a bfloat16 one 1 to 4 % (docs/gpu.md), at 32
    query heads and 8 KV heads of 128. Over an int8 cache with a window or sinks, 2 warps have not the registers.
    """
    if op.dtype == "float32":
        return Tile(16, 32, min(op.group, 16), 8, 2)
    block_m = min(max(next_power_of_2(op.group), 16), 64)
    block_n = 64 if op.block_d <= 128 else 32
    spills = op.int8_kv and (op.window > 0 or op.has_sinks)
    warps = 2 if sm == 90 and block_m == 16 and op.block_d <= 128 and not spills else 4
    return Tile(block_m, block_n, min(op.group, block_m), warps, 3)


def programs_of_an_item(op: Attention, sm: int) -> int:
    """Returns the programs of decode for the same positions: one for each KV head, or for each part of its heads."""
    return op.kv_heads * ceil_div(op.group, decode_tile(op, sm).heads)
