"""Writes the engine's small files: config.json and build-report.json."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

import tensorwright
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases
from tensorwright.engine_format.checksums import read_sum
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.engine_format.engine_config import (
    AccuracyRecord,
    EngineConfig,
    HeadsRecord,
    Limits,
    ModelFacts,
    QuantizationRecord,
    SourceFile,
    SourceRecord,
)
from tensorwright.engine_format.pooling import PoolingRecord
from tensorwright.engine_format.strict_json import read_value
from tensorwright.ir.facts import Facts, KvLayer
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.heads_checkpoint import HeadsCheckpoint
from tensorwright.plugins.paged_attention.int4_pages import int4_position_bytes

if TYPE_CHECKING:
    from tensorwright.builder.trace.draft_heads import DraftHeads

_FACTS = {fact.name for fact in fields(ModelFacts)}


def source_record(checkpoint: Checkpoint) -> SourceRecord:
    """Returns the files that the engine is made from, and one hash over them all."""
    quantization = checkpoint.quantization.summary if checkpoint.quantization else None
    return _files_record(checkpoint.source_files, checkpoint.folder, quantization)


def heads_record(heads: DraftHeads, checkpoint: HeadsCheckpoint | None, vocab_size: int) -> HeadsRecord:
    """Returns what the engine says of its heads. checkpoint: theirs, None if it is the model's. vocab_size: the
    model's."""
    tokens = heads.draft_tokens
    source = None if checkpoint is None else _files_record(checkpoint.source_files, checkpoint.path, None)
    at_once = heads.at_once if heads.at_once > 1 else None
    return HeadsRecord(heads.kind, heads.width, vocab_size if tokens is None else len(tokens), source, at_once)


def _files_record(paths: Iterable[Path], folder: Path, quantization: str | None) -> SourceRecord:
    files = {}
    for path in paths:
        digest, size = read_sum(path)
        files[path.relative_to(folder).as_posix()] = SourceFile(size, digest)
    lines = "".join(f"{file.xxh3_128}  {name}\n" for name, file in files.items())
    return SourceRecord(xxhash.xxh3_128_hexdigest(lines.encode()), files, quantization)


def engine_config(
    facts: Facts,
    *,
    options: BuildOptions,
    passes: dict[str, int],
    accuracy: dict[str, Any] | None,
    quantization: dict[str, Any] | None,
    source: SourceRecord,
    sizes: dict[str, int],
    kv_block_bytes: int,
    states: int | None,
    heads: HeadsRecord | None,
    pooling: PoolingRecord | None,
) -> EngineConfig:
    """Returns config.json. facts: the facts of the graph. accuracy, quantization: the measured records. states: the
    bytes of one sequence's states; None means those of the graph."""
    states = state_bytes(facts) if states is None else states
    return EngineConfig(
        tensorwright_version=tensorwright.__version__,
        target=options.target,
        model=read_value(ModelFacts, {name: value for name, value in facts.literals() if name in _FACTS}, "model"),
        dtype=facts.dtype,
        limits=Limits(facts.max_seq_len, facts.block_size, kv_block_bytes, states or None),
        build_options=options.record(),
        passes=passes,
        accuracy=None if accuracy is None else AccuracyRecord(**accuracy),
        quantization=None if quantization is None else QuantizationRecord.from_dict(quantization),
        source=source,
        sizes=sizes,
        heads=heads,
        pooling=pooling,
    )


def kv_block_bytes(facts: Facts) -> int:
    """Returns the bytes of one KV block over all layers, as plugins/paged_attention/layout.h pads keys and values.

    A layer of latent rows has keys alone.
    """
    return sum(group_block_bytes(facts).values())


def group_block_bytes(facts: Facts) -> dict[int, int]:
    """Returns the bytes of one KV block of each cache group."""
    totals: dict[int, int] = {}
    for layer in facts.kv_layers:
        totals[layer.group] = totals.get(layer.group, 0) + _block_bytes(layer, facts)
    return totals


def _block_bytes(layer: KvLayer, facts: Facts) -> int:
    if layer.dtype == "int4":
        return layer.kv_heads * facts.block_size * int4_position_bytes(layer.head_dim)
    item = ITEM_BYTES[layer.dtype_or(facts.dtype)]
    group = 4 // item
    scales = 2 * 4 * facts.block_size if item == 1 else 0
    keys = facts.block_size * -(-layer.head_dim // group) * group * item
    values = -(-facts.block_size * layer.head_dim * item // 64) * 64
    return keys if layer.v_dim else layer.kv_heads * (keys + values + scales)


def state_bytes(facts: Facts) -> int:
    """Returns the bytes of one sequence's states over all recurrent layers."""
    return sum(layer.bytes for layer in facts.state_layers)


def build_report(phases: Phases, pass_seconds: dict[str, float], notes: dict[str, Any]) -> dict[str, Any]:
    """Returns build-report.json: what differs from build to build. Times are in seconds, memory in bytes."""
    return {
        "phase_seconds": {name: round(value, 3) for name, value in phases.seconds.items()},
        "pass_seconds": {name: round(value, 4) for name, value in pass_seconds.items()},
        "total_seconds": round(phases.total, 3),
        **notes,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "packages": {name: _version(name) for name in ("torch", "transformers", "numpy", "tokenizers", "safetensors")},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
