"""Merges a LoRA adapter into a checkpoint: the matrix W of each of its modules becomes W + scale * B A.

The product and the sum are computed in float64, rounded to float32, and rounded once more if the checkpoint is of a
narrower type. All other tensors and files are copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorwright.durable import put_in_place, sync_tree
from tensorwright.errors import AdapterError, UnsupportedModelError
from tensorwright.hub import INDEX, WEIGHTS
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.convert_heads import refuse_existing
from tensorwright.models.dtypes import FLOATS, Tensor, convert, to_float32
from tensorwright.models.peft_adapter import GREATEST_RANK, PeftAdapter, read_adapter
from tensorwright.models.safetensors_writer import header, parts_of, write_tensors

SUFFIX = ".weight"
TRANSPOSED = ("gpt2",)
"""The families whose checkpoints have the matrices of linear layers as [inputs, outputs]."""
MAX_PART = 1 << 22
"""The most numbers of a matrix that are merged at once."""


@dataclass(frozen=True)
class Merged:
    """What was merged. modules: how many. rank: the largest."""

    path: Path
    modules: int
    rank: int


def merge_lora(
    checkpoint: Checkpoint,
    adapter: str | Path,
    out: Path,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Merged:
    """Writes the merged checkpoint to the folder `out`, which must not exist.

    Raises AdapterError for an adapter that does not fit, UnsupportedModelError for a model with quantized weights,
    CheckpointError, OutputExistsError.
    """
    if checkpoint.gguf is not None or checkpoint.quantization is not None:
        raise UnsupportedModelError(
            f"{checkpoint.path}: its weights are quantized; merge the adapter into the checkpoint before them, or load "
            "it beside them with --adapter"
        )
    read = read_adapter(adapter, GREATEST_RANK)
    _check(checkpoint, read)
    refuse_existing(out)
    names = list(checkpoint.names)
    beginning, total = header({name: (checkpoint.dtype(name), checkpoint.shape(name)) for name in names})
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        for file in checkpoint.source_files:
            if file.suffix != ".safetensors" and file.name != INDEX:
                target = part / file.relative_to(checkpoint.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        with (part / WEIGHTS).open("wb") as sink:
            sink.write(beginning)
            write_tensors(sink, (_parts(checkpoint, name, read) for name in names), total, advance)
        sync_tree(part)
        put_in_place(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Merged(out, len(read.modules), max(module.rank for module in read.modules.values()))


def _check(checkpoint: Checkpoint, adapter: PeftAdapter) -> None:
    """Raises AdapterError unless every module has a matrix of floats of the checkpoint."""
    shapes, transposed, refused = {}, {}, {}
    for name in checkpoint.names:
        shape, module = checkpoint.shape(name), name.removesuffix(SUFFIX)
        if name.endswith(SUFFIX) and len(shape) == 2:
            transposed[module] = checkpoint.config.get("model_type") in TRANSPOSED and module != "lm_head"
            shapes[module] = (shape[1], shape[0]) if transposed[module] else shape
            if checkpoint.dtype(name) not in FLOATS:
                refused[module] = f"is of type {checkpoint.dtype(name)}"
    adapter.check_base(shapes, transposed, refused)


def _parts(checkpoint: Checkpoint, name: str, adapter: PeftAdapter) -> Iterator[np.ndarray]:
    module = name.removesuffix(SUFFIX)
    if module not in adapter.modules or not name.endswith(SUFFIX):
        yield from parts_of(checkpoint, name)
        return
    dtype, (rows, columns) = checkpoint.dtype(name), checkpoint.shape(name)
    a, b = adapter.read(module)
    left, right = (side.astype(np.float64) for side in ((a.T, b.T) if adapter.transposed else (b, a)))
    scale = adapter.modules[module].scale
    step = max(1, MAX_PART // columns)
    for first in range(0, rows, step):
        end = min(first + step, rows)
        wide = convert(checkpoint.read_part(name, ((first, end), (0, columns))), "float32").data
        merged = convert(Tensor("float64", wide + scale * (left[first:end] @ right)), dtype)
        if not np.isfinite(to_float32(merged)).all():
            raise AdapterError(f"{adapter.path}: merged with {name} it gives numbers that are not finite")
        yield merged.data
