"""Keeps the checkpoint's tensors inside an engine, so that the engine can be built again for another target.

weights.safetensors holds every tensor that graph.txt refers to, in the checkpoint's own type, sorted by name. Matrices
of a quantized checkpoint are decoded.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import numpy as np

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.file_names import KEPT_WEIGHTS
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.safetensors_file import SafetensorsFile, stored_name
from tensorwright.models.stored_tensors import StoredTensors

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
            for data in _chunks(checkpoint, name):
                done += file.write(np.ascontiguousarray(data).tobytes())
                advance(done, total)


def _chunks(checkpoint: Checkpoint, name: str) -> Iterator[np.ndarray]:
    """Yields a tensor's elements, some rows at a time."""
    if not checkpoint.shape(name):
        yield checkpoint.read(name).data
        return
    first, *others = checkpoint.shape(name)
    row_bytes = max(1, prod(others) * ITEM_BYTES[checkpoint.dtype(name)])
    step = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, first, step):
        ranges = ((start, min(first, start + step)), *((0, size) for size in others))
        yield checkpoint.read_part(name, ranges).data


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
        self.channel_scales = {}
        self.config = {}
        self.generation_config = {}
        self.stored = StoredTensors(engine, [SafetensorsFile(engine / KEPT_WEIGHTS)])
        self.quantization = None
        self.names = self.stored.names
