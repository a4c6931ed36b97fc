"""Keeps the checkpoint's tensors inside an engine, so that the engine can be built again for another target.

weights.safetensors holds every tensor that graph.txt refers to, in the checkpoint's own type, sorted by name. Matrices
of a quantized checkpoint are decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.engine_format.file_names import KEPT_WEIGHTS
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.safetensors_file import SafetensorsFile
from tensorwright.models.safetensors_writer import header, parts_of, write_tensors
from tensorwright.models.stored_tensors import StoredTensors


def write_kept_weights(
    writer: EngineWriter, graph: Graph, checkpoint: Checkpoint, advance: Callable[[int, int], None]
) -> None:
    """Copies the tensors that the weights of `graph` are made of. `advance` gets (bytes done, bytes in total)."""
    names = sorted({name for node in graph.find("weight") for name in node.attrs["expr"].refs()})
    entries = {name: (checkpoint.dtype(name), checkpoint.shape(name)) for name in names}
    beginning, total = header(entries)
    writer.require_space(len(beginning) + total)
    with writer.open(KEPT_WEIGHTS) as file:
        file.write(beginning)
        write_tensors(file, (parts_of(checkpoint, name) for name in names), total, advance)


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
