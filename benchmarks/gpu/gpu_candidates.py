"""Times int4 products and attention over an int8 cache in other forms than the shipped ones, next to these.

    python benchmarks/gpu/gpu_candidates.py [--json FILE] [--only int4 decode prefill]

Each candidate's numbers are first compared with the definition, in float64, at a small shape. Needs a GPU and its
driver; the code may be carried (kernel_bundle.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_attention
import gpu_tiles
import int4_gemv
from gpu_ceilings import copy_rate
from gpu_device import Device, with_memory
from gpu_tiles import Choice, Form

from tensorwright.errors import KernelError, MissingDependencyError
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import KernelSpec, ceil_div
from tensorwright.plugins.paged_attention.tiles import Tile
from tensorwright.plugins.quantized_matmul import launch as int4

GROUP = 128
SHAPES = ((4096, 4096), (14336, 4096))
"""(N, K)"""
TOKENS = (1, 8, 16, 64, 512)
CACHE_BYTES = 200 << 20
"""Weights that are taken in turn: four times an H100's L2 cache."""
SMALL = {"n": 384, "k": 1024, "group": GROUP}


@dataclass(frozen=True)
class Int4:
    """Other values of the names of plugins/quantized_matmul/launch.py, and the tokens that they concern."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    tokens: tuple[int, ...] = TOKENS


FEW = (1, 8, 16)
NARROW = {"GEMM_TILES": ((64, 64),)}
INT4 = (
    Int4("as it is"),
    Int4("4 blocks of an SM", {"BLOCKS_OF_AN_SM": {"gemv": 4, "gemm": 4}}),
    Int4("1 block of an SM", {"BLOCKS_OF_AN_SM": {"gemv": 4, "gemm": 1}}, FEW),
    Int4("K never split", {"MAX_SPLITS": 1}, FEW),
    Int4("4 stages", {"GEMM_STAGES": 4}),
    Int4("6 stages", {"GEMM_STAGES": 6}, FEW),
    Int4("128 columns", {"GEMM_TILES": ((128, 64),)}, FEW),
    Int4("64 columns", NARROW, FEW),
    Int4("64 columns, 4 blocks of an SM", {**NARROW, "BLOCKS_OF_AN_SM": {"gemv": 4, "gemm": 4}}, FEW),
    Int4("64 columns, 6 stages", {**NARROW, "GEMM_STAGES": 6}, FEW),
    Int4("64 rows, 128 deep", {"GEMM_DEPTH": {8: 128, 16: 128, 64: 128}, "GEMM_STAGES": 3}, (64, 512)),
    Int4("64 rows, 4 warps", {"GEMM_WARPS": {8: 4, 16: 4, 64: 4}}, (64, 512)),
    Int4("128 rows", {"GEMM_ROWS": (8, 16, 64, 128), "GEMM_WARPS": {8: 4, 16: 4, 64: 8, 128: 8},
                      "GEMM_DEPTH": {8: 128, 16: 128, 64: 64, 128: 64}}, (512,)),
    Int4("128 rows, 128 deep", {"GEMM_ROWS": (8, 16, 64, 128), "GEMM_WARPS": {8: 4, 16: 4, 64: 8, 128: 8},
                                "GEMM_DEPTH": {8: 128, 16: 128, 64: 64, 128: 128}, "GEMM_STAGES": 3}, (512,)),
)  # fmt: skip
DECODES = ((64, 1024), (64, 4096), (1, 4096), (1, 32768))
PREFILLS = ((1, 8192), (4, 2048))


def tiles(*forms: tuple[int, int, int, int]) -> tuple[Choice, ...]:
    return (Choice(), *(Choice(Tile(rows, positions, 4, warps, stages)) for rows, positions, warps, stages in forms))


ATTENTION = (
    Form("decode", (Choice(),), False),
    Form("decode, KV int8", tiles((16, 64, 4, 3), (16, 64, 2, 2), (16, 64, 2, 4), (16, 64, 1, 3), (16, 32, 2, 3),
                                  (16, 32, 2, 5), (16, 32, 1, 4), (16, 128, 2, 2), (16, 128, 4, 2)), False,
         kv_dtype="int8"),
    Form("prefill, KV int8", tiles((64, 32, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2),
                                   (128, 128, 8, 2)), True, kv_dtype="int8"),
)  # fmt: skip


@contextlib.contextmanager
def chosen(candidate: Int4) -> Iterator[None]:
    """Makes int4 products use the candidate's values."""
    own = {name: getattr(int4, name) for name in candidate.values}
    try:
        for name, value in candidate.values.items():
            setattr(int4, name, value)
        yield
    finally:
        for name, value in own.items():
            setattr(int4, name, value)


def specs(sm: int) -> Iterator[KernelSpec]:
    """Yields the kernels of all candidates."""
    for candidate in INT4:
        with chosen(candidate):
            yield from int4_gemv.specs(sm, group=GROUP)
    for form in ATTENTION:
        for choice in form.choices:
            with gpu_tiles.chosen(form, choice):
                yield from gpu_attention.kernels(form.attributes(), {"q": gpu_tiles.DTYPE}, sm)


def int4_error(device: Device, tokens: int) -> float:
    """Returns the largest difference from the product in float64, as a part of what rounding and sums may give."""
    memory = Memory()
    launches = int4_gemv.products(memory, SMALL, "float16", tokens, 1, device.sm)
    device.run(int4.kernels(SMALL, dict.fromkeys(("x", "scales", "y"), "float16"), device.sm), launches, memory)
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    nibbles = memory.array("packed0").view(np.uint32)[:, None] >> shifts[None, :, None] & 15
    weights = (nibbles.reshape(SMALL["k"], -1).astype(np.int64) ^ 8) - 8
    w = weights * np.repeat(memory.array("scales0").astype(np.float64), GROUP, 0)
    x = memory.array("x").astype(np.float64)
    allowed = np.abs(x @ w) * 2.0**-10 + np.abs(x) @ np.abs(w) * SMALL["k"] * 2.0**-24
    return float(np.max(np.abs(memory.array("y") - x @ w) / allowed))


def int4_row(device: Device, candidate: Int4, n: int, k: int, tokens: int) -> dict[str, Any]:
    attrs = {"n": n, "k": k, "group": GROUP}
    copies = ceil_div(CACHE_BYTES, int4_gemv.bytes_of(n, k, GROUP, "float16", 0))
    memory = Memory()
    launches = int4_gemv.products(memory, attrs, "float16", tokens, copies, device.sm)
    known = int4.kernels(attrs, dict.fromkeys(("x", "scales", "y"), "float16"), device.sm)
    time = with_memory(device, memory, lambda real: device.microseconds(device.prepared(known, launches, real), 30))
    rate = int4_gemv.bytes_of(n, k, GROUP, "float16", tokens) * copies / time * 1e-3
    case = f"int4, {tokens} tokens, {n} x {k}"
    return {"case": case, "choice": candidate.name, "microseconds": time / copies, "gb_per_s": rate}


def attention_error(device: Device, form: Form) -> float:
    """Returns the largest difference from attention in float64, in units of the largest result's bfloat16 rounding."""
    memory, seqs, context = Memory(), 2, 200
    tokens = context if form.prefill else 1
    options: dict[str, Any] = {"window": form.window, "kv_dtype": form.kv_dtype}
    launches = gpu_attention.work(memory, seqs, tokens, context, 1, gpu_tiles.DTYPE, device.sm, listed=False, **options)
    device.run(gpu_attention.kernels(form.attributes(), {"q": gpu_tiles.DTYPE}, device.sm), launches, memory)
    heads, kv_heads, dim = gpu_attention.HEADS, gpu_attention.KV_HEADS, gpu_attention.HEAD_DIM
    q = memory.array("q").reshape(seqs, tokens, kv_heads, heads // kv_heads, dim).astype(np.float64)
    tables = memory.array("block_tables")

    def rows(name: str) -> np.ndarray:
        pages = memory.array(f"{name}_pages.0").astype(np.float64)
        if form.kv_dtype == "int8":
            pages *= memory.array(f"{name}_scales.0")[..., None]
        return pages[tables].transpose(0, 2, 1, 3, 4).reshape(seqs, kv_heads, -1, dim)[:, :, :context]

    scores = np.einsum("sthgd,shpd->shgtp", q, rows("k")) * dim**-0.5
    scores[..., np.triu(np.ones((tokens, context), bool), context - tokens + 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("shgtp,shpd->sthgd", weights / weights.sum(-1, keepdims=True), rows("v"))
    got = memory.array("out").reshape(out.shape)
    return float(np.max(np.abs(got - out)) / (np.max(np.abs(out)) * 2.0**-7))


def attention_row(device: Device, form: Form, choice: Choice, seqs: int, count: int) -> dict[str, Any]:
    time = gpu_tiles.seconds(device, form, seqs, count)
    entry: dict[str, Any] = {"case": f"{form.name}, {seqs} x {count}", "choice": str(choice)}
    if time and form.prefill:
        entry["tflop_per_s"] = gpu_attention.operations(seqs, count, form.window) / time / 1e12
    elif time:
        entry["gb_per_s"] = gpu_attention.kv_bytes(seqs, count, form.kv_dtype) / time / 1e9
    return {**entry, "microseconds": time and time * 1e6}


def measure(device: Device, only: list[str]) -> Iterator[dict[str, Any]]:
    gpu_attention.LAYER_BYTES = gpu_tiles.LAYER_BYTES
    for candidate in INT4 if "int4" in only else ():
        with chosen(candidate):
            try:
                worst = max(int4_error(device, tokens) for tokens in candidate.tokens)
            except KernelError as error:
                print(f"int4, {candidate.name}: refused: {error}", file=sys.stderr)
                continue
            for n, k in SHAPES:
                for tokens in candidate.tokens:
                    yield {**int4_row(device, candidate, n, k, tokens), "error": worst}
    for form in ATTENTION:
        if ("prefill" if form.prefill else "decode") not in only:
            continue
        for choice in form.choices:
            with gpu_tiles.shape(form), gpu_tiles.chosen(form, choice):
                try:
                    worst = attention_error(device, form)
                except KernelError as error:
                    print(f"{form.name}, {choice}: refused: {error}", file=sys.stderr)
                    continue
                for seqs, count in PREFILLS if form.prefill else DECODES:
                    yield {**attention_row(device, form, choice, seqs, count), "error": worst}


def show(entry: dict[str, Any]) -> None:
    rate = entry.get("tflop_per_s") or entry.get("gb_per_s") or 0.0
    time = entry["microseconds"] or 0.0
    wrong = "" if entry["error"] <= 1 else "   WRONG"
    print(f"{entry['case']:34} {entry['choice']:34} {time:10.2f} us {rate:9.1f}  error {entry['error']:.3f}{wrong}",
          flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=("int4", "decode", "prefill"))
    args = parser.parse_args()
    try:
        device = Device()
    except MissingDependencyError as error:
        sys.exit(str(error))
    print(f"SM {device.sm}; a copy on the device: {copy_rate(device) / 1e9:.0f} GB/s")
    rows = []
    for entry in measure(device, args.only or ["int4", "decode", "prefill"]):
        show(entry)
        rows.append(entry)
        if args.json:
            Path(args.json).write_text(json.dumps({"sm": device.sm, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(entry["error"] > 1 for entry in rows))


if __name__ == "__main__":
    main()
