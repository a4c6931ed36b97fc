"""Reads and writes onnx/io.json: the facts that a program needs to run the ONNX model, beside the model itself.

{
  "version": 1,
  "model": "model.onnx", "opset": 23, "domains": {"com.microsoft": 1},
  "dtype": "float32" | "float16"            the type of activations and cache
  "vocab_size", "max_seq_len",
  "inputs":  {"token_ids": "int32", "positions": "int32", "seqlens_k": "int32", "total_sequence_length": "int32",
              "logit_rows": "int32"}
  "shapes":  {"token_ids": ["batch", "seq"], "positions": ["batch", "seq"], "seqlens_k": ["batch"],
              "total_sequence_length": [], "logit_rows": ["rows"], "logits": ["rows", vocab_size]}
  "token_ids_shape", "positions_shape": "[batch, seq]"
  "logits": "logits"                        the name of the output, which is float32
  "cache": one entry per layer, in order:
             {"key": "past_k.0", "value": "past_v.0", "present_key": "present_k.0", "present_value": "present_v.0",
              "shape": ["batch", kv_heads, max_seq_len, head_dim],
              "kv_heads", "head_dim", "dtype", "window"}
  "groups":  [{"window": 0, "layers": [0, 1, ...]}]       groups of block tables: one, because a slot holds a sequence
  "block_size": max_seq_len,                positions of a slot
  "slot_bytes": bytes of the cache of one sequence over all layers
}

A step is B sequences of S new tokens each: either S = 1, or B = 1. positions count from 0. seqlens_k[b] is the length
of sequence b, with the tokens of this step, less one; total_sequence_length is the largest of these lengths. logit_rows
names rows of the token-major [B * S], and may be empty. past_* and present_* must be bound to the same memory: the
model never reads what lies behind the end of a sequence there, and writes only the new positions. The model has every
input, even one that it does not need. head_dim is that of the cache: a multiple of 8, filled with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.file_names import ONNX_MODEL
from tensorwright.engine_format.targets import TARGETS
from tensorwright.errors import EngineError

VERSION = 1
INPUTS: dict[str, tuple[str, ...]] = {
    "token_ids": ("batch", "seq"),
    "positions": ("batch", "seq"),
    "seqlens_k": ("batch",),
    "total_sequence_length": (),
    "logit_rows": ("rows",),
}
"""The inputs beside the cache, and their shapes."""
_MATRIX, _FLAT = "[batch, seq]", "[batch*seq]"
_NAMES = ("key", "value", "present_key", "present_value")


@dataclass(frozen=True)
class CacheLayer:
    """The keys and values of one layer: their names, and their shape [batch, kv_heads, max_seq_len, head_dim]."""

    key: str
    value: str
    present_key: str
    present_value: str
    kv_heads: int
    head_dim: int
    dtype: str
    window: int
    """The number of positions that attention sees; 0 means all."""

    @property
    def position_bytes(self) -> int:
        """Bytes of one position, keys and values."""
        return 2 * self.kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    def to_dict(self, max_seq_len: int) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _NAMES},
            "shape": ["batch", self.kv_heads, max_seq_len, self.head_dim],
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "dtype": self.dtype,
            "window": self.window,
        }


@dataclass(frozen=True)
class OnnxManifest:
    """The content of io.json. Fields that repeat others in another form are written but not read."""

    layers: tuple[CacheLayer, ...]
    dtype: str
    vocab_size: int
    max_seq_len: int
    opset: int
    domains: dict[str, int]
    inputs: dict[str, str]
    """The element type of each of INPUTS."""
    flat_positions: bool = False
    """Whether positions are [batch * seq], as logit_rows count, and not [batch, seq]."""
    logits: str = "logits"

    @property
    def position_bytes(self) -> int:
        """Bytes of one position in all layers, keys and values."""
        return sum(layer.position_bytes for layer in self.layers)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the cache of one sequence of max_seq_len positions."""
        return self.position_bytes * self.max_seq_len

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of io.json."""
        positions = ("batch * seq",) if self.flat_positions else INPUTS["positions"]
        shapes = {name: list(shape) for name, shape in {**INPUTS, "positions": positions}.items()}
        return {
            "version": VERSION,
            "model": ONNX_MODEL.rpartition("/")[2],
            "opset": self.opset,
            "domains": self.domains,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "max_seq_len": self.max_seq_len,
            "inputs": self.inputs,
            "shapes": {**shapes, "logits": ["rows", self.vocab_size]},
            "token_ids_shape": _MATRIX,
            "positions_shape": _FLAT if self.flat_positions else _MATRIX,
            "logits": self.logits,
            "cache": [layer.to_dict(self.max_seq_len) for layer in self.layers],
            "groups": [{"window": 0, "layers": list(range(len(self.layers)))}],
            "block_size": self.max_seq_len,
            "slot_bytes": self.slot_bytes,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], path: Path) -> OnnxManifest:
        """Reads the content of io.json. Raises EngineError, which names `path` and what is wrong."""
        if data.get("version") != VERSION:
            raise EngineError(
                f"{path}: version {data.get('version')!r}, this tensorwright reads {VERSION}; build the engine again"
            )
        try:
            return _parse(data)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineError(f"{path}: {error} is missing or of the wrong type; {REMEDY}") from error


def _parse(data: dict[str, Any]) -> OnnxManifest:
    dtypes = TARGETS["onnx"].dtypes
    return OnnxManifest(
        inputs={name: _one_of(data["inputs"], name, ("int32", "int64")) for name in INPUTS},
        flat_positions=_one_of(data, "positions_shape", (_MATRIX, _FLAT)) == _FLAT,
        layers=tuple(
            CacheLayer(
                **{name: _text(layer, name) for name in _NAMES},
                kv_heads=_number(layer, "kv_heads", least=1),
                head_dim=_number(layer, "head_dim", least=1),
                dtype=_one_of(layer, "dtype", dtypes),
                window=_number(layer, "window", least=0),
            )
            for layer in data["cache"]
        ),
        logits=_text(data, "logits"),
        dtype=_one_of(data, "dtype", dtypes),
        vocab_size=_number(data, "vocab_size", least=1),
        max_seq_len=_number(data, "max_seq_len", least=1),
        opset=_number(data, "opset", least=1),
        domains={name: _number(data["domains"], name, least=1) for name in data["domains"]},
    )


def _text(table: dict[str, Any], name: str) -> str:
    if not isinstance(table[name], str):
        raise ValueError(f"{name!r} ({table[name]!r})")
    return table[name]


def _number(table: dict[str, Any], name: str, least: int) -> int:
    value = table[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name!r} ({value!r})")
    return value


def _one_of(table: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    if table[name] not in allowed:
        raise ValueError(f"{name!r} ({table[name]!r})")
    return table[name]
