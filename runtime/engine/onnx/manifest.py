"""onnx/io.json: what the model's inputs and outputs are called, and how they are typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.errors import EngineError
from tensorwright.runtime.engine.engine_dir import EngineDir

FILE = "onnx/io.json"
VERSION = 1
INPUTS = ("token_ids", "positions", "seqlens_k", "total_sequence_length", "logit_rows")
ITEM_SIZES = {"float32": 4, "float16": 2}


@dataclass(frozen=True)
class CacheLayer:
    """The names of one layer's keys and values, [batch, kv_heads, max_seq_len, head_dim]."""

    key: str
    value: str
    present_key: str
    present_value: str
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def position_bytes(self) -> int:
        """Of keys alone."""
        return self.kv_heads * self.head_dim * ITEM_SIZES[self.dtype]


@dataclass(frozen=True)
class Io:
    """inputs: each input's type. flat_positions: positions are [batch * seq], as logit_rows count, not [batch, seq]."""

    inputs: dict[str, str]
    flat_positions: bool
    logits: str
    layers: tuple[CacheLayer, ...]

    @property
    def position_bytes(self) -> int:
        """Of one position in all layers, keys and values."""
        return 2 * sum(layer.position_bytes for layer in self.layers)


def read_io(engine: EngineDir) -> Io:
    """Held against config.json. EngineError names what is wrong."""
    path, data = engine.path / FILE, engine.read_json(FILE)
    if data.get("version") != VERSION:
        raise EngineError(
            f"{path}: version {data.get('version')!r}, this tensorwright reads {VERSION}; build the engine again"
        )
    try:
        io = _parse(data)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{path}: {error} is missing or of the wrong type; {REMEDY}") from error
    slot = io.position_bytes * engine.max_seq_len
    for name, its in (("block_size", engine.max_seq_len), ("kv_block_bytes", slot)):
        if getattr(engine, name) != its:
            raise EngineError(
                f"{engine.path / 'config.json'}: {name} is {getattr(engine, name)}, but {FILE} comes to {its}: files "
                f"of two builds are mixed; {REMEDY}"
            )
    return io


def _parse(data: dict[str, Any]) -> Io:
    inputs = {name: _one_of(data["inputs"], name, ("int32", "int64")) for name in INPUTS}
    positions = _one_of(data, "positions_shape", ("[batch, seq]", "[batch*seq]"))
    kinds: dict[str, tuple[str, ...] | type] = {
        **dict.fromkeys(("key", "value", "present_key", "present_value"), str),
        **dict.fromkeys(("kv_heads", "head_dim"), int),
        "dtype": tuple(ITEM_SIZES),
    }
    layers = tuple(
        CacheLayer(**{name: _one_of(layer, name, kind) for name, kind in kinds.items()}) for layer in data["cache"]
    )
    return Io(inputs, positions == "[batch*seq]", _one_of(data, "logits", str), layers)


def _one_of(table: dict[str, Any], name: str, allowed: tuple[str, ...] | type) -> Any:
    value = table[name]
    good = isinstance(value, allowed) if isinstance(allowed, type) else value in allowed
    if not good or (allowed is int and value < 1):
        raise ValueError(f"{name!r} ({value!r})")
    return value
