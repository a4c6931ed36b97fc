"""Keeps the checkpoint's tensors inside an engine, so that the engine can be built again for another target.

weights.safetensors holds every tensor that graph.txt refers to, in the checkpoint's own type, sorted by name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.file_names import KEPT_WEIGHTS
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.safetensors_file import SafetensorsFile, stored_name

_CHUNK_BYTES = 8 << 20


def write_kept_weights(
    writer: EngineWriter, graph: Graph, checkpoint: Checkpoint, advance: Callable[[int, int], None]
) -> None:
    """Copies the tensors that the weights of `graph` are made of. `advance` gets (bytes done, bytes in total)."""
    names = sorted({name for node in graph.find("weight") for name in node.attrs["expr"].refs()})
    header, total = _header(checkpoint, names)
    writer.require_space(len(header) + total)
    done = 0
    with writer.open(KEPT_WEIGHTS) as file:
        file.write(header)
        for name in names:
            data = checkpoint.read(name).data.reshape(-1).view("u1")
            for start in range(0, len(data), _CHUNK_BYTES):
                done += file.write(data[start : start + _CHUNK_BYTES].tobytes())
                advance(done, total)


def _header(checkpoint: Checkpoint, names: list[str]) -> tuple[bytes, int]:
    """Returns the file's beginning, padded to 8 bytes, and the number of bytes of all tensors."""
    table, offset = {}, 0
    for name in names:
        shape, dtype = checkpoint.shape(name), checkpoint.dtype(name)
        end = offset + prod(shape) * ITEM_BYTES[dtype]
        table[name] = {"dtype": stored_name(dtype), "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offset


class EngineSource(Checkpoint):
    """An engine with kept weights, read as the checkpoint that it came from: tensors and the text side.

    The model's config.json, which only tracing needs, is not there.
    """

    is_engine = True

    def __init__(self, engine: Path):
        self.path = engine
        self.config = {}
        self.generation_config = {}
        file = SafetensorsFile(engine / KEPT_WEIGHTS)
        self.weight_files = [file]
        self._home = dict.fromkeys(file.tensors, file)
        self.names = tuple(sorted(self._home))
