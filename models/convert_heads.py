"""Makes a checkpoint with fewer heads of K and V than another: the start of grouped heads from plain ones.

Each new head is the mean of those that it takes the place of (Ainslie et al. 2023, GQA, section 2.1), which the paper
found better than the first of them. The model loses accuracy, and wants to be trained on for some per cent of its first
training.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.durable import put_in_place, sync_tree
from tensorwright.engine_format.file_names import CONFIG
from tensorwright.errors import CheckpointError, InvalidOptionError, OutputExistsError, UnsupportedModelError
from tensorwright.hub import INDEX, WEIGHTS
from tensorwright.models.checkpoint import TEXT_PART, Checkpoint
from tensorwright.models.dtypes import Tensor, convert
from tensorwright.models.safetensors_writer import header, parts_of, write_tensors

POOLED = re.compile(r".*\.(?:k_proj|v_proj)\.(?:weight|bias)|.*\.k_norm\.weight")
"""The names of what belongs to heads of K and V. A norm of k may be of one head, which all share, or of all."""
FUSED = re.compile(r".*\.qkv_proj\.(?:weight|bias)")
"""The name of q, k and v in one matrix, one below the other."""
COUNT = "num_key_value_heads"


@dataclass(frozen=True)
class Heads:
    """The heads of a model. queries, before, after: heads of q, of K and V, and of K and V after the conversion."""

    queries: int
    before: int
    after: int
    head_dim: int

    @property
    def pooled(self) -> int:
        """How many heads become one."""
        return self.before // self.after


def convert_heads(
    checkpoint: Checkpoint, out: Path, kv_heads: int, advance: Callable[[int, int], None] = lambda done, total: None
) -> Heads:
    """Writes the checkpoint to the folder `out`, which must not exist, with `kv_heads` heads of K and V in each layer.

    Raises InvalidOptionError for a number that does not divide the model's, UnsupportedModelError for a model whose
    heads of K and V are not found, CheckpointError, OutputExistsError.
    """
    heads = read_heads(checkpoint, kv_heads)
    refuse_existing(out)
    names = list(checkpoint.names)
    entries = {name: (checkpoint.dtype(name), _shape(checkpoint, name, heads)) for name in names}
    beginning, total = header(entries)
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        for file in checkpoint.source_files:
            if file.suffix != ".safetensors" and file.name not in (CONFIG, INDEX):
                target = part / file.relative_to(checkpoint.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        (part / CONFIG).write_text(json.dumps(_config(checkpoint, heads), indent=2) + "\n", encoding="utf-8")
        with (part / WEIGHTS).open("wb") as sink:
            sink.write(beginning)
            write_tensors(sink, (_parts(checkpoint, name, heads) for name in names), total, advance)
        sync_tree(part)
        put_in_place(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return heads


def refuse_existing(out: Path) -> None:
    """Raises OutputExistsError if there is something at `out`."""
    if os.path.lexists(out):
        raise OutputExistsError(f"{out}: exists; choose another folder")


def read_heads(checkpoint: Checkpoint, kv_heads: int) -> Heads:
    """Returns the heads before and after. Raises what `convert_heads` raises for a model or a number that cannot be."""
    file = checkpoint.config_file
    if checkpoint.gguf is not None or checkpoint.quantization is not None:
        raise UnsupportedModelError(f"{checkpoint.path}: its weights are quantized; convert the checkpoint before them")
    config = _text(checkpoint.config)
    queries, width = config.get("num_attention_heads"), config.get("hidden_size")
    if not isinstance(queries, int) or not isinstance(width, int) or queries < 1:
        raise CheckpointError(f"{file}: must give num_attention_heads and hidden_size")
    before = config.get(COUNT) or queries
    head_dim = config.get("head_dim") or width // queries
    if kv_heads < 1 or before % kv_heads or kv_heads == before:
        fitting = ", ".join(str(n) for n in range(1, before) if before % n == 0)
        raise InvalidOptionError(
            f"kv_heads must divide the model's {before} heads of K and V, and be fewer: {fitting or 'none is fewer'}; "
            f"not {kv_heads}"
        )
    found = [name for name in checkpoint.names if _rows(name, checkpoint, queries, before, head_dim) is not None]
    layers = {re.sub(r"\D*(\d+).*", r"\1", name) for name in found}
    if len(layers) != config.get("num_hidden_layers"):
        raise UnsupportedModelError(
            f"{checkpoint.path}: {config.get('model_type')} keeps its heads of K and V otherwise than in k_proj and "
            f"v_proj (or qkv_proj) of {before} x {head_dim} rows in each of its layers; such models are not converted"
        )
    return Heads(queries, before, kv_heads, head_dim)


def _text(config: dict[str, Any]) -> dict[str, Any]:
    part = config.get(TEXT_PART)
    return part if isinstance(part, dict) else config


def _rows(name: str, checkpoint: Checkpoint, queries: int, kv_heads: int, head_dim: int) -> int | None:
    """Returns the first row of K and V in a tensor, None for one that has no heads of K and V."""
    rows = checkpoint.shape(name)[:1]
    if POOLED.fullmatch(name):
        return 0 if rows == (kv_heads * head_dim,) else None
    if FUSED.fullmatch(name):
        return queries * head_dim if rows == ((queries + 2 * kv_heads) * head_dim,) else None
    return None


def _first(checkpoint: Checkpoint, name: str, heads: Heads) -> int | None:
    return _rows(name, checkpoint, heads.queries, heads.before, heads.head_dim)


def _shape(checkpoint: Checkpoint, name: str, heads: Heads) -> tuple[int, ...]:
    shape, first = checkpoint.shape(name), _first(checkpoint, name, heads)
    return shape if first is None else (first + (shape[0] - first) // heads.pooled, *shape[1:])


def _parts(checkpoint: Checkpoint, name: str, heads: Heads) -> Iterator[np.ndarray]:
    first = _first(checkpoint, name, heads)
    if first is None:
        yield from parts_of(checkpoint, name)
        return
    dtype, others = checkpoint.dtype(name), [(0, size) for size in checkpoint.shape(name)[1:]]
    if first:
        yield checkpoint.read_part(name, ((0, first), *others)).data
    rows = checkpoint.shape(name)[0]
    wide = convert(checkpoint.read_part(name, ((first, rows), *others)), "float32").data
    groups = wide.reshape(-1, heads.pooled, heads.head_dim, *wide.shape[1:])
    pooled = groups.mean(1, dtype=np.float64).astype(np.float32)
    yield convert(Tensor("float32", pooled.reshape(-1, *wide.shape[1:])), dtype).data


def _config(checkpoint: Checkpoint, heads: Heads) -> dict[str, Any]:
    changed = {COUNT: heads.after}
    if isinstance(checkpoint.config.get(TEXT_PART), dict):
        return checkpoint.config | {TEXT_PART: checkpoint.config[TEXT_PART] | changed}
    return checkpoint.config | changed
