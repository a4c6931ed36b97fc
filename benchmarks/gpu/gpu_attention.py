"""How close the attention kernels come to what the GPU allows.

    python benchmarks/gpu/gpu_attention.py [--dtype bfloat16] [--json FILE]

Decode is compared with the rate of a copy on the device: bytes of K and V, each read once, against bytes read and
written. Prefill is compared with a large bf16 product: two products of head_dim per visible pair of positions and query
head. 32 query heads, 8 KV heads of 128, pages of 32 in random order; decode goes over several layers, so that the L2
cache holds none of them. Targets: decode of 64 x 4096 at 85% of the copy, prefill of 8192 at 60% of the product.
Needs a GPU, its driver, cuda-bindings and triton.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_ceilings import copy_rate, filled, product_rate
from gpu_device import Device, with_memory

from tensorwright.engine_format.kv_cache import SCALED_BYTES, page_dtype
from tensorwright.errors import MissingDependencyError
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch
from tensorwright.plugins.paged_attention import work_list
from tensorwright.plugins.paged_attention.launch import kernels, launches, workspace_bytes
from tensorwright.plugins.paged_attention.tiles import Attention

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 32
DECODE = ((64, 4096), (8, 4096), (1, 32768), (64, 512))
"""(sequences, context)"""
PREFILL = ((1, 8192, 0), (4, 2048, 0), (1, 8192, 1024), (1, 2048, 0))
"""(sequences, tokens of each, window)"""
LAYER_BYTES = 1 << 30
"""Bytes of K and V that a decode case reads before it returns to the first layer."""
KV_DTYPES = ("auto", *SCALED_BYTES)
REPEATS = 50


def attributes(window: int, kv_dtype: str) -> dict[str, Any]:
    return {
        "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "scale": HEAD_DIM**-0.5, "window": window,
        "softcap": 0.0, "has_sinks": 0, "int8_kv": int(kv_dtype in SCALED_BYTES), "e4m3_kv": int(kv_dtype == "fp8"),
        "block_size": BLOCK_SIZE,
    }  # fmt: skip


def kv_bytes(seqs: int, context: int, kv_dtype: str) -> int:
    """Returns the bytes of K and V of one layer, with scales."""
    of_head = HEAD_DIM + 4 if kv_dtype in SCALED_BYTES else 2 * HEAD_DIM
    return 2 * seqs * context * KV_HEADS * of_head


def layers_of(seqs: int, context: int, kv_dtype: str) -> int:
    return max(1, LAYER_BYTES // kv_bytes(seqs, context, kv_dtype))


def operations(seqs: int, tokens: int, window: int) -> int:
    """Returns the multiplications and additions for the visible pairs of positions."""
    seen = np.arange(1, tokens + 1)
    pairs = int(np.minimum(seen, window).sum() if window else seen.sum())
    return 4 * HEAD_DIM * HEADS * seqs * pairs


def work(
    memory: Memory, seqs: int, tokens: int, context: int, layers: int, dtype: str, sm: int, *, window: int = 0,
    kv_dtype: str = "auto", listed: bool = True,
) -> list[Launch]:  # fmt: skip
    """Returns the launches of all layers. The `tokens` of each sequence are at the end of its `context`. listed: with a
    list of the work of decodes, made once, as engines of target cuda do."""
    attrs, width = attributes(window, kv_dtype), -(-context // BLOCK_SIZE)
    kv = dtype if kv_dtype == "auto" else page_dtype(kv_dtype)
    page = (seqs * width, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    tables = np.random.default_rng(0).permutation(seqs * width).reshape(seqs, width)
    inputs = {
        "q": filled(memory, "q", (seqs * tokens, HEADS * HEAD_DIM), dtype),
        "seq_starts": memory.put("seq_starts", np.arange(seqs + 1) * tokens, "int32"),
        "context_lens": memory.put("context_lens", np.full(seqs, context), "int32"),
        "block_tables": memory.put("block_tables", tables, "int32"),
    }
    out = memory.empty("out", inputs["q"].shape, dtype)
    started: list[Launch] = []
    if listed:
        shape = (seqs, work_list.columns(Attention.of(attrs, dtype)))
        made = {"work": memory.empty("work", shape, "int32")}
        started += work_list.launches(attrs, inputs, made, None, sm)
        inputs |= made
    size = workspace_bytes(attrs, {name: tensor.shape for name, tensor in inputs.items()}) // 4
    workspace = memory.empty("workspace", (size,), "float32") if size else None
    for layer in range(layers):
        pages = {name: filled(memory, f"{name}.{layer}", page, kv) for name in ("k_pages", "v_pages")}
        if kv == "int8":
            ones = np.full(page[:3], 0.01)
            pages |= {name: memory.put(f"{name}.{layer}", ones, "float32") for name in ("k_scales", "v_scales")}
        started += launches(attrs, {**inputs, **pages}, {"out": out}, workspace, sm)
    return started


def seconds(device: Device, dtype: str, seqs: int, tokens: int, context: int, layers: int, **options: Any) -> float:
    """Returns the seconds of one layer."""
    memory = Memory()
    started = work(memory, seqs, tokens, context, layers, dtype, device.sm, **options)
    attrs = attributes(options.get("window", 0), options.get("kv_dtype", "auto"))
    specs = started_kernels(attrs, dtype, device.sm, listed=options.get("listed", True))
    time = with_memory(device, memory, lambda real: device.microseconds(device.prepared(specs, started, real), REPEATS))
    return time / layers * 1e-6


def started_kernels(attrs: dict[str, Any], dtype: str, sm: int, *, listed: bool = True) -> tuple[KernelSpec, ...]:
    """Returns the kernels that `work` starts."""
    if not listed:
        return kernels(attrs, {"q": dtype}, sm)
    dtypes = {"q": dtype, "work": "int32"}
    return *work_list.kernels(attrs, dtypes, sm), *kernels(attrs, dtypes, sm)


def specs(sm: int, dtype: str = "bfloat16") -> Iterator[KernelSpec]:
    """Yields the kernels of all cases."""
    for window, kv_dtype in {(window, "auto") for _, _, window in PREFILL} | {(0, kv_dtype) for kv_dtype in KV_DTYPES}:
        yield from started_kernels(attributes(window, kv_dtype), dtype, sm)


def measure(device: Device, dtype: str) -> list[dict[str, Any]]:
    copy, (product, whose) = copy_rate(device), product_rate(device)
    rows = [row("copy on the device", 0.0, copy / 1e9, "GB/s", 1.0, "copy")]
    rows.append(row("bf16 product of 8192", 0.0, product / 1e12, "TFLOP/s", 1.0, f"product ({whose})"))
    for kv_dtype in KV_DTYPES:
        for seqs, context in DECODE:
            layers = layers_of(seqs, context, kv_dtype)
            time = seconds(device, dtype, seqs, 1, context, layers, kv_dtype=kv_dtype)
            rate = kv_bytes(seqs, context, kv_dtype) / time
            rows.append(row(f"decode {seqs} x {context}, KV {kv_dtype}", time, rate / 1e9, "GB/s", rate / copy, "copy"))
    for seqs, tokens, window in PREFILL:
        time = seconds(device, dtype, seqs, tokens, tokens, 1, window=window)
        rate = operations(seqs, tokens, window) / time
        name = f"prefill {seqs} x {tokens}" + (f", window {window}" if window else "")
        rows.append(row(name, time, rate / 1e12, "TFLOP/s", rate / product, f"product ({whose})"))
    return rows


def row(name: str, time: float, rate: float, unit: str, share: float, of: str) -> dict[str, Any]:
    return {"case": name, "microseconds": time * 1e6, "rate": rate, "unit": unit, "share": share, "of": of}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="bfloat16")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    try:
        device = Device()
    except MissingDependencyError as error:
        sys.exit(str(error))
    print(f"SM {device.sm}, {args.dtype}")
    rows = measure(device, args.dtype)
    for entry in rows:
        print("{case:34} {microseconds:10.1f} us {rate:9.1f} {unit:8} {share:5.0%} of {of}".format(**entry))
    if args.json:
        text = json.dumps({"sm": device.sm, "dtype": args.dtype, "cases": rows}, indent=1)
        Path(args.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
