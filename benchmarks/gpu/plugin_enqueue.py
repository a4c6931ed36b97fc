"""Times what a call of a TensorRT plugin costs the host, without a GPU: over a libcuda that does nothing.

    python benchmarks/gpu/plugin_enqueue.py [--json FILE]

The library is compiled from idle_libcuda.c; the calls are those of a decoder layer of 32 heads of 128. Needs
tensorrt-rtx, cuda-bindings, triton and a C compiler. Figures are microseconds: the best of several
rounds for known shapes, medians for new ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

LIBRARY = "libcuda.so.1"
SHAPES = {"decode, 1 sequence": (1, 1), "decode, 64 sequences": (64, 64), "mixed, 512 tokens": (512, 4)}
"""(tokens, sequences) of a step."""
MAX_BLOCKS = 64
CHANNELS, HEADS, KV_HEADS, HEAD_DIM = 4096, 32, 8, 128
NORMS_OF_A_LAYER = 2
NEW_SHAPES, ROUNDS = 60, 9


def calls(tokens: int, seqs: int) -> list[Any]:
    """Returns the plugin calls of a decoder layer: a norm, the write into the cache, attention."""
    from support.tensorrt_step import Places, Step

    place = Places()
    page = ((4096, KV_HEADS, 32, HEAD_DIM), "bfloat16")
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    rows, q = ((tokens, CHANNELS), "bfloat16"), ((tokens, HEADS * HEAD_DIM), "bfloat16")
    inputs = place.all(x=rows, residual=rows, w=((CHANNELS,), "float32"))
    norm = Step(
        "norm", "AddRmsNorm", {"eps": 1e-5, "weight_offset": 0.0}, inputs, place.all(y=rows, sum=rows),
        {"channels": CHANNELS},
    )  # fmt: skip
    qkv = ((tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM), "bfloat16")
    inputs = place.all(
        qkv=qkv, table=((tokens, HEAD_DIM), "float32"), slots=((tokens,), "int32"), k_pages=page, v_pages=page
    )
    outputs = place.all(q=q) | {name: inputs[name] for name in ("k_pages", "v_pages")}
    write = Step("write", "RotaryKvWrite", {**sizes, "rotary_dim": HEAD_DIM, "int8_kv": 0}, inputs, outputs, {})
    inputs = place.all(
        q=q, k_pages=page, v_pages=page, seq_starts=((seqs + 1,), "int32"), context_lens=((seqs,), "int32"),
        block_tables=((seqs, MAX_BLOCKS), "int32"),
    )  # fmt: skip
    attrs = {**sizes, "scale": HEAD_DIM**-0.5, "window": 0, "softcap": 0.0, "has_sinks": 0, "int8_kv": 0}
    workspace = place("workspace", (64 * 64 * HEADS * (HEAD_DIM + 2),), "float32")
    attend = Step("attend", "PagedAttention", attrs, inputs, place.all(out=q), {"block_size": 32}, workspace)
    return [norm, write, attend]


def restored(trt: Any, step: Any, layers: int) -> list[Any]:
    """Returns the plugins of layers that are alike, as an engine makes them, with compiled kernels."""
    import numpy as np

    from support.tensorrt_step import make_fields, make_plugin
    from tensorwright.plugins.gpu.build_context import building_for, running_with
    from tensorwright.plugins.gpu.creators import OPS, make_creator
    from tensorwright.plugins.gpu.driver import CudaDriver

    op = next(op for op in OPS if op.name == step.op)
    with building_for([90]):
        plugin = make_plugin(trt, op, step, "layers.0")
        fields = [(f.name, f.type.name, np.asarray(f.data).tobytes()) for f in plugin.get_fields_to_serialize()]
    with running_with(CudaDriver()), make_fields(trt, fields) as collection:
        creator, phase = make_creator(trt, op), trt.TensorRTPhase.RUNTIME
        return [creator.create_plugin(f"layers.{number}", collection, phase) for number in range(layers)]


def mean(work: Callable[[], Any], repeats: int) -> float:
    """Returns the microseconds of one `work()`, the mean of many."""
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begin) / repeats * 1e6


def measure(trt: Any, tokens: int, seqs: int) -> dict[str, dict[str, float]]:
    """Times a call of a known shape, one whose operands moved, and one of a new shape: for a layer behind others that
    are alike, and for the first of them. A shape is new because each step has one token more than the one before."""
    found: dict[str, dict[str, float]] = {}
    steps = [calls(tokens + more, seqs if seqs < tokens else tokens + more) for more in range(NEW_SHAPES)]
    for number, step in enumerate(steps[0]):
        first, second = restored(trt, steps[-1][number], 2)  # its shapes are the largest
        here, there = step.arguments(trt), step.moved(1 << 34).arguments(trt)

        def known(plugin: Any = first, here: Any = here) -> None:
            plugin.enqueue(*here, 5)

        def move(plugin: Any = first, here: Any = here, there: Any = there) -> None:
            plugin.enqueue(*here, 5)
            plugin.enqueue(*there, 5)

        known()
        shapes = [each[number].arguments(trt) for each in steps[1:]]
        fresh: dict[Any, list[float]] = {first: [], second: []}
        for arguments in shapes:
            for plugin, times in fresh.items():
                begin = time.perf_counter()
                plugin.enqueue(*arguments, 5)
                times.append((time.perf_counter() - begin) * 1e6)
        known()
        found[step.op] = {
            "known": min(mean(known, 500) for _ in range(ROUNDS)),
            "moved": min(mean(move, 250) for _ in range(ROUNDS)) / 2,
            "new shape": statistics.median(fresh[second]),
            "new shape, first layer": statistics.median(fresh[first]),
        }
    names = next(iter(found.values()))
    counts = {name: NORMS_OF_A_LAYER if name == "AddRmsNorm" else 1 for name in found}
    found["a layer"] = {name: sum(counts[op] * found[op][name] for op in counts) for name in names}
    return found


def over_idle_library() -> None:
    """Starts this program again, with the library that does nothing in the place of the driver's."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = HERE / "idle_libcuda.c", Path(folder) / LIBRARY
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        environment = {**os.environ, "LD_LIBRARY_PATH": folder}
        raise SystemExit(subprocess.run([sys.executable, *sys.argv, "--over-idle-library"], env=environment).returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--over-idle-library", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.over_idle_library:
        over_idle_library()
    import tensorrt_rtx as trt

    report = {}
    print(f"{'':24}{'':16}{'known':>8}{'moved':>8}{'new':>8}{'first':>8}  us")
    for name, (tokens, seqs) in SHAPES.items():
        report[name] = measure(trt, tokens, seqs)
        for op, times in report[name].items():
            print(f"{name:24}{op:16}" + "".join(f"{value:8.1f}" for value in times.values()))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
