"""Manifests of made-up TensorRT engines."""

from __future__ import annotations

from typing import Any

from tensorwright.engine_format.tensorrt_manifest import (
    KvLayer,
    Manifest,
    Profile,
    Range,
    outputs_of,
    page_inputs,
    step_inputs,
    symbols,
)


def make_manifest(**changes: Any) -> Manifest:
    """Two layers in two groups, one of them with a window; everything that depends on a change follows it."""
    f: dict[str, Any] = {
        "flavour": "tensorrt-rtx",
        "library_version": "1.7.1.116",
        "sms": (80, 89),
        "kernel_sms": (80, 89),
        "dtype": "float16",
        "kv_dtype": "float16",
        "block_size": 4,
        "vocab_size": 11,
        "max_seq_len": 64,
        "layers": (KvLayer(0, 2, 8), KvLayer(1, 1, 16)),
        "group_windows": (0, 8),
        "plugins": {"PagedAttention": "1", "RotaryKvWrite": "1"},
    } | changes
    pages = page_inputs(f["layers"], f["kv_dtype"], f["block_size"])
    f.setdefault("inputs", (*step_inputs(len(f["group_windows"])), *pages))
    f.setdefault("outputs", outputs_of(pages, f["vocab_size"]))
    f.setdefault("profiles", make_profiles(len(f["group_windows"]), max_blocks=-(-f["max_seq_len"] // f["block_size"])))
    return Manifest(**f)


def make_profiles(groups: int, *, tokens: int = 32, seqs: int = 8, pages: int = 1000, max_blocks: int = 16) -> Any:
    """Prefill-heavy, then decode, whose tokens are no more than its sequences."""
    tops = {"seqs": seqs, "max_blocks": max_blocks, "pages": pages}
    made = []
    for name, most in (("prefill", {"tokens": tokens, "rows": tokens}), ("decode", {"tokens": seqs, "rows": seqs})):
        limits = tops | most
        ranges = {s: limits[s.partition(".")[0]] for s in symbols(groups)}
        made.append(Profile(name, {s: Range(1, max(1, top // 2), top) for s, top in ranges.items()}))
    return tuple(made)
