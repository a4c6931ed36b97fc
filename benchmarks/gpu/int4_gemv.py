"""Weight-only int4 products on an NVIDIA GPU: microseconds and the share of the memory's rate that they reach.

    python benchmarks/gpu/int4_gemv.py [--n 4096] [--k 4096] [--group 128] [--dtype float16] [--tokens 1 2 4 8 16 64]

Needs a GPU, its driver, cuda-bindings and triton. Bytes are those of the weights, their scales, x and y, once each.
More weights than the L2 cache holds are taken in turn, so that they come from memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_device import Device, with_memory

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import MissingDependencyError
from tensorwright.plugins.gpu.interpret import Memory
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, ceil_div
from tensorwright.plugins.quantized_matmul import launch

CACHE_MULTIPLE = 4
"""The weights together are so many times as large as the L2 cache."""


def bytes_of(n: int, k: int, group: int, dtype: str, tokens: int) -> int:
    """Returns the bytes that one product reads and writes, each byte once."""
    item = ITEM_BYTES[dtype]
    return ceil_div(k, 8) * n * 4 + ceil_div(k, group) * n * item + tokens * (k + n) * item


def products(memory: Memory, attrs: dict[str, int], dtype: str, tokens: int, copies: int, sm: int) -> list[Launch]:
    """Returns the launches of one product with each of `copies` matrices."""
    n, k, group = attrs["n"], attrs["k"], attrs["group"]
    rng = np.random.default_rng(0)
    x = memory.put("x", rng.standard_normal((tokens, k)), dtype)
    y = memory.empty("y", (tokens, n), dtype)
    size = launch.workspace_bytes(attrs, {"x": (tokens, k)})
    workspace = memory.empty("workspace", (size,), "int8") if size else None
    words = rng.integers(-(2**31), 2**31, (ceil_div(k, 8), n), np.int64).astype(np.int32)
    scales = rng.uniform(0.001, 0.01, (ceil_div(k, group), n))
    found: list[Launch] = []
    for copy in range(copies):
        inputs = {
            "x": x,
            "packed": memory.put(f"packed{copy}", words, "int32"),
            "scales": memory.put(f"scales{copy}", scales, dtype),
        }
        found += launch.launches(attrs, inputs, {"y": y}, workspace, sm)
    return found


def specs(sm: int, dtype: str = "float16", group: int = 128) -> tuple[KernelSpec, ...]:
    """Returns the kernels of all numbers of tokens; sizes of the matrix do not matter where they are even."""
    attrs = {"n": 4096, "k": 4096, "group": group}
    return launch.kernels(attrs, dict.fromkeys(("x", "scales", "y"), dtype), sm)


def stated_bandwidth(device: Device) -> float:
    """Returns the bytes per second of the memory: two transfers per clock, which is in kHz, over the bus's width."""
    clock = device.attribute("CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE")
    return 2 * clock * 1e3 * device.attribute("CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH") / 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("--group", type=int, choices=launch.GROUPS, default=128)
    parser.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], default="float16")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--bandwidth", type=float, default=0.0, help="GB/s of the memory; default: as the driver says")
    args = parser.parse_args()
    try:
        device = Device()
    except MissingDependencyError as error:
        sys.exit(str(error))
    peak = args.bandwidth * 1e9 or stated_bandwidth(device)
    if not peak:
        sys.exit("the driver does not state the memory's clock: give its rate with --bandwidth, in GB/s")
    attrs = {"n": args.n, "k": args.k, "group": args.group}
    specs = launch.kernels(attrs, dict.fromkeys(("x", "scales", "y"), args.dtype), device.sm)
    weights = bytes_of(args.n, args.k, args.group, args.dtype, 0)
    copies = ceil_div(CACHE_MULTIPLE * device.attribute("CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE"), weights)
    print(f"SM {device.sm}, {peak / 1e9:.0f} GB/s at most")
    print(f"N {args.n}, K {args.k}, groups of {args.group}, {args.dtype}, {copies} matrices in turn")
    print("tokens  microseconds    GB/s  share")
    rows = []
    for tokens in args.tokens:
        memory = Memory()
        launches = products(memory, attrs, args.dtype, tokens, copies, device.sm)
        time = with_memory(
            device, memory, lambda real, launches=launches: device.microseconds(device.prepared(specs, launches, real))
        )
        rate = bytes_of(args.n, args.k, args.group, args.dtype, tokens) * copies / (time * 1e-6)
        print(f"{tokens:6} {time / copies:13.2f} {rate / 1e9:7.0f} {rate / peak:6.1%}", flush=True)
        rows.append({"tokens": tokens, "microseconds": time / copies, "gb_per_s": rate / 1e9, "share": rate / peak})
    if args.json:
        facts = {"sm": device.sm, "dtype": args.dtype, **attrs, "stated_gb_per_s": peak / 1e9, "rows": rows}
        Path(args.json).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
