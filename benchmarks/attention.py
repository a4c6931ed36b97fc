"""How close the attention kernels come to what the machine allows.

Decode of one token over a long context is compared with the memory's read rate (bytes of K and V), prefill of a whole
prompt with the arithmetic peak (two products of head_dim per visible position and query head; in bf16 the scores count
against the dot-instruction peak, the weighted sum of V against the float32 one). The ceilings are measured right before
and after each figure, since shared machines drift. Every layer has its own pages, so that caches hold none of them.

    python benchmarks/attention.py --model qwen2.5-0.5b --dtype bfloat16 --threads 1 2
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import machine

from tensorwright.runtime import _runtime, _testing

DTYPES = {"float32": 0, "bfloat16": 1, "int8": 3, "int4": 4}
"""Types of the cache, with their numbers in plugins/common/kernel_types.h. With a cache of integers q is bfloat16."""
DECODE_BYTES = 128 << 20
"""Bytes of K and V per repeat of a decode run: more than any cache of a processor holds."""


@dataclass(frozen=True)
class Heads:
    heads: int
    kv_heads: int
    head_dim: int


MODELS = {
    "qwen2.5-0.5b": Heads(14, 2, 64),
    "llama-3.2-1b": Heads(32, 8, 64),
    "llama-3.2-3b": Heads(24, 8, 128),
}


def ceilings(dtype: str, threads: int, dot: bool) -> tuple[float, float]:
    """Returns (bytes per second, operations per second of attention)."""
    fma = _runtime.ceiling("float32", threads, 3)
    peak = 2 / (1 / fma + 1 / _runtime.ceiling("bfloat16 avx512", threads, 3)) if dot else fma
    return _runtime.ceiling("read", threads, 3), peak


def best_seconds(
    dtype: str,
    index: int,
    model: Heads,
    context: int,
    queries: int,
    layers: int,
    threads: int,
    args: argparse.Namespace,
) -> float:
    return min(
        _testing.time_attention(
            DTYPES[dtype], index, context=context, queries=queries, heads=model.heads, kv_heads=model.kv_heads,
            head_dim=model.head_dim, query_tile=min(args.query_tile, queries), layers=layers, threads=threads,
            repeats=args.repeats,
        )
    )  # fmt: skip


def report(
    dtype: str, index: int, model: Heads, queries: int, context: int, threads: int, args: argparse.Namespace
) -> None:
    name = _testing.attention_table(DTYPES[dtype])[index][0]
    position = _testing.kv_block_bytes(DTYPES[dtype], 1, model.head_dim, 32) / 64  # K or V of one head
    kv_bytes = int(2 * context * model.kv_heads * position)
    layers = max(1, DECODE_BYTES // kv_bytes) if queries == 1 else 1
    before = ceilings(dtype, threads, name.endswith("avx512bf16"))
    seconds = best_seconds(dtype, index, model, context, queries, layers, threads, args)
    after = ceilings(dtype, threads, name.endswith("avx512bf16"))
    read, peak = (max(pair) for pair in zip(before, after, strict=True))
    seen = sum(range(context - queries + 1, context + 1))
    rate, bandwidth = 4 * model.head_dim * model.heads * seen * layers / seconds, kv_bytes * layers / seconds
    print(
        f"{name:26s} threads {threads}  {'decode' if queries == 1 else 'prefill'} {context:5d}  "
        f"{1e3 * seconds / layers:8.3f} ms/layer  {rate / 1e9:7.1f} GFLOP/s ({rate / peak:4.0%} of {peak / 1e9:.0f})"
        + (f"  {bandwidth / 1e9:5.1f} GB/s ({bandwidth / read:4.0%} of {read / 1e9:.1f})" if queries == 1 else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen2.5-0.5b")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=list(DTYPES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--decode", type=int, nargs="*", default=[4096], help="context lengths")
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048], help="prompt lengths")
    parser.add_argument("--query-tile", type=int, default=16, help="queries per task")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--all-kernels", action="store_true", help="every instruction set, not only the best")
    args = parser.parse_args()
    model = MODELS[args.model]
    print(machine.describe(), f"busy {machine.busy_fraction():.0%}")
    for dtype in args.dtype:
        runnable = [i for i, entry in enumerate(_testing.attention_table(DTYPES[dtype])) if entry[2]]
        for index in runnable if args.all_kernels else runnable[:1]:
            for threads in args.threads:
                for context in args.decode:
                    report(dtype, index, model, 1, context, threads, args)
                for context in args.prefill:
                    report(dtype, index, model, context, context, threads, args)


if __name__ == "__main__":
    main()
