"""Writes plan.bin and weights.bin by hand, record by record, for tests of the executor without the builder.

Independent of builder/emit on purpose: both follow plan_format.h, neither copies the mistakes of the other.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

F32, BF16, I32 = 0, 1, 2
TOKENS, ROWS = 0, 1
RAW, PANELS = 0, 1
LANES = 16

EMBEDDING, RMS_NORM, MATMUL, ROTARY_TABLE, ROTARY_KV_WRITE, PAGED_ATTENTION, GATHER_ROWS, SWIGLU, ADD = range(1, 10)

HEADER = struct.Struct("<8s II QQ IIIIIIIIII iI QQ")
KV_LAYER = struct.Struct("<3I2H3I")
BUFFER = struct.Struct("<4IQ")
WEIGHT = struct.Struct("<4IQQII")
INSTRUCTION = struct.Struct("<II4i2i2i8i4f")


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16 (uint16), to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def round_to(dtype: int, x: np.ndarray) -> np.ndarray:
    """float32 [...] rounded to the values that `dtype` has, as float32."""
    if dtype == F32:
        return np.asarray(x, np.float32)
    return (to_bf16(x).astype(np.uint32) << 16).view(np.float32).reshape(np.shape(x))


def pack_panels(dtype: int, w: np.ndarray) -> bytes:
    """[n, k] to panels of 16 rows, K interleaved by 4 bytes: [panels, k/g, 16, g]."""
    g = 1 if dtype == F32 else 2
    n, k = w.shape
    padded = np.zeros((-(-n // LANES) * LANES, -(-k // g) * g), np.float32)
    padded[:n, :k] = w
    panels = padded.reshape(-1, LANES, padded.shape[1] // g, g).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(panels).tobytes() if dtype == F32 else to_bf16(panels).tobytes()


def interleave(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """[n, ...] twice to the row order of a SWIGLU weight: 16 rows of gate, the same 16 of up, and so on."""
    n = gate.shape[0]
    rows = -(-n // LANES) * LANES
    pad = [(0, rows - n)] + [(0, 0)] * (gate.ndim - 1)
    pairs = np.stack([np.pad(a, pad).reshape(-1, LANES, *gate.shape[1:]) for a in (gate, up)], axis=1)
    return pairs.reshape(2 * rows, *gate.shape[1:])


@dataclass
class PlanWriter:
    """Collects records; methods return indices. Buffers get memory of their own unless `over` names another's."""

    vocab_size: int
    max_seq_len: int
    block_size: int
    act_dtype: int
    kv_layers: list[tuple[int, int, int, int, bool, int]] = field(default_factory=list)
    """group, kv_heads, head_dim, window, chunked, sink_tokens"""
    states: list[int] = field(default_factory=list)  # bytes of each recurrent layer's state
    buffers: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    weights: list[tuple[int, int, int, int, int, int, int, int]] = field(default_factory=list)
    instructions: list[bytes] = field(default_factory=list)
    names: bytearray = field(default_factory=lambda: bytearray(b"\0"))
    data: bytearray = field(default_factory=bytearray)
    arena: list[int] = field(default_factory=lambda: [0, 0])
    logits: int = 0

    def name(self, text: str) -> int:
        self.names += text.encode() + b"\0"
        return len(self.names) - len(text) - 1

    def kv_layer(
        self, kv_heads: int, head_dim: int, window: int = 0, group: int = 0, chunked: bool = False, sink_tokens: int = 0
    ) -> int:
        sinks = sink_tokens if window > 0 else 0
        self.kv_layers.append((group, kv_heads, head_dim, window, chunked and window > 0, sinks))
        return len(self.kv_layers) - 1

    def buffer(self, kind: int, dtype: int, cols: int) -> int:
        stride = -(-cols * (2 if dtype == BF16 else 4) // 64) * 64
        self.buffers.append((kind, dtype, cols, stride, self.arena[kind]))
        self.arena[kind] += stride
        return len(self.buffers) - 1

    def weight(self, name: str, dtype: int, layout: int, n: int, k: int, content: bytes) -> int:
        self.data += bytes(-len(self.data) % 64)
        self.weights.append((dtype, layout, n, k, len(self.data), len(content), self.name(name), 0))
        self.data += content
        return len(self.weights) - 1

    def panels(self, name: str, w: np.ndarray) -> int:
        n = -(-w.shape[0] // LANES) * LANES
        return self.weight(name, self.act_dtype, PANELS, n, w.shape[1], pack_panels(self.act_dtype, w))

    def vector(self, name: str, v: np.ndarray) -> int:
        return self.weight(name, F32, RAW, 1, v.size, np.asarray(v, np.float32).tobytes())

    def op(self, op: int, name: str, ins=(), outs=(), weights=(), ints=(), floats=()) -> None:
        def padded(items, size, filler):
            return [*items, *[filler] * (size - len(items))]

        self.instructions.append(
            INSTRUCTION.pack(
                op, self.name(name), *padded(ins, 4, -1), *padded(outs, 2, -1), *padded(weights, 2, -1),
                *padded(ints, 8, 0), *padded(floats, 4, 0.0),
            )
        )  # fmt: skip

    def plan_bytes(self) -> bytes:
        tables = b"".join(KV_LAYER.pack(g, h, d, self.act_dtype, c, w, 0, s) for g, h, d, w, c, s in self.kv_layers)
        tables += b"".join(struct.pack("<Q", size) for size in self.states)
        tables += b"".join(BUFFER.pack(*b) for b in self.buffers)
        tables += b"".join(WEIGHT.pack(*w) for w in self.weights)
        tables += b"".join(self.instructions) + bytes(self.names)
        groups = len({layer[0] for layer in self.kv_layers})
        header = HEADER.pack(
            b"TWCPUPLN", 3, HEADER.size, HEADER.size + len(tables), len(self.data),
            self.vocab_size, self.max_seq_len, self.block_size, self.act_dtype, len(self.kv_layers), groups,
            len(self.buffers), len(self.weights), len(self.instructions), len(self.names), self.logits,
            len(self.states), *self.arena,
        )  # fmt: skip
        return header + tables

    def write(self, folder: Path) -> tuple[str, str]:
        """Paths of plan.bin and weights.bin."""
        plan, weights = folder / "plan.bin", folder / "weights.bin"
        plan.write_bytes(self.plan_bytes())
        weights.write_bytes(bytes(self.data))
        return str(plan), str(weights)
