"""The engine's small files: config.json and build-report.json."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash

import tensorwright
from tensorwright.builder.emit.engine_dir import FORMAT, FORMAT_VERSION
from tensorwright.builder.phases import Phases
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.models.checkpoint import Checkpoint

_FACTS = (
    "model_type", "vocab_size", "hidden_size", "layers", "heads", "kv_heads", "head_dim", "max_position_embeddings",
    "max_seq_len", "longrope", "bos_token_id", "eos_token_ids",
)  # fmt: skip
_READ_BYTES = 8 << 20


def source_record(checkpoint: Checkpoint) -> dict[str, Any]:
    """{"hash", "files"}: the files that the engine is made from, and one hash over them all."""
    files = {}
    for path in checkpoint.source_files:
        digest, size = _hash_file(path)
        files[path.relative_to(checkpoint.path).as_posix()] = {"bytes": size, "xxh3_128": digest}
    lines = "".join(f"{entry['xxh3_128']}  {name}\n" for name, entry in files.items())
    return {"hash": xxhash.xxh3_128_hexdigest(lines.encode()), "files": files}


def engine_config(
    *,
    target: str,
    facts: dict[str, Any],
    build_options: dict[str, Any],
    passes: dict[str, int],
    records: dict[str, dict[str, Any] | None],
    source: dict[str, Any],
    sizes: dict[str, int],
    kv_block_bytes: int,
) -> dict[str, Any]:
    """config.json: no time, host or path in it, so that two builds of the same input are byte-identical.

    records: what was measured, "accuracy" and "quantization".
    """
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tensorwright_version": tensorwright.__version__,
        "target": target,
        "model": {name: facts[name] for name in _FACTS if name in facts},
        "dtype": facts["dtype"],
        "limits": {
            "max_seq_len": facts["max_seq_len"],
            "block_size": facts["block_size"],
            "kv_block_bytes": kv_block_bytes,
        },
        "build_options": build_options,
        "passes": passes,
        **records,
        "source": source,
        "sizes": sizes,
    }


def kv_block_bytes(layers: list[dict[str, Any]], dtype: str, block_size: int) -> int:
    """Bytes of one KV block over all layers, as plugins/paged_attention/layout.h pads keys and values.

    A layer without a dtype of its own has `dtype`, the activations'.
    """
    total = 0
    for layer in layers:
        item = ITEM_BYTES[layer.get("dtype", dtype)]
        group = 4 // item
        scales = 2 * 4 * block_size if item == 1 else 0
        keys = block_size * -(-layer["head_dim"] // group) * group * item
        values = -(-block_size * layer["head_dim"] * item // 64) * 64
        total += layer["kv_heads"] * (keys + values + scales)
    return total


def build_report(phases: Phases, pass_seconds: dict[str, float], notes: dict[str, Any]) -> dict[str, Any]:
    """build-report.json: what differs from build to build. Times in seconds, memory in bytes."""
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


def _hash_file(path: Path) -> tuple[str, int]:
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size
