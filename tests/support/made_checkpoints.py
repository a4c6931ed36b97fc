"""Checkpoint files made by hand, byte by byte where a test needs them wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "uint16": "BF16"}
CONFIG = {"model_type": "llama", "num_hidden_layers": 1, "vocab_size": 5, "max_position_embeddings": 64}


def safetensors_bytes(tensors: dict[str, np.ndarray], change: Any = None) -> bytes:
    """A file of these tensors; uint16 arrays are stored as BF16. `change(header)` may spoil the header first."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, len(data)],
        }
    if change is not None:
        change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_checkpoint(path: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    """A one-file checkpoint directory."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return path


def write_sharded(
    path: Path, shards: dict[str, dict[str, np.ndarray]], weight_map: dict[str, str] | None = None
) -> Path:
    """A sharded checkpoint directory; `weight_map` replaces the true one."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    for name, tensors in shards.items():
        (path / name).write_bytes(safetensors_bytes(tensors))
    true_map = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {}, "weight_map": true_map if weight_map is None else weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
