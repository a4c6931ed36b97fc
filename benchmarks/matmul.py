"""How close the matmul kernels come to what the machine allows.

For every shape of a model, prints GFLOP/s, GB/s of weights and the part of the ceiling reached. The ceilings are
measured right before and after each figure, since shared machines drift: dot or FMA peak of the kernel's instruction
set for operations, streaming reads for bytes. Weights rotate through memory in decode (few rows), as the layers of a
model do.

    python benchmarks/matmul.py --model qwen2.5-0.5b --dtype bfloat16 --threads 1 2 --rows 1 4 16 512
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tensorwright.runtime import _runtime

DTYPES = ("float32", "bfloat16")
SWIGLU = 1
FLAT_ROWS = 16
ROTATED_BYTES = 256 << 20
"""More than any cache holds, and little enough to fit beside other things."""


@dataclass(frozen=True)
class Shape:
    """A weight matrix: n output columns (of the result, after swiglu), k inputs."""

    name: str
    n: int
    k: int
    epilogue: int = 0

    @property
    def weights(self) -> int:
        return self.n * self.k * (1 + self.epilogue)


MODELS = {
    "qwen2.5-0.5b": [
        Shape("qkv", 1152, 896),
        Shape("out", 896, 896),
        Shape("gate_up", 4864, 896, SWIGLU),
        Shape("down", 896, 4864),
        Shape("head", 151936, 896),
    ],
    "llama-3.2-1b": [
        Shape("qkv", 3072, 2048),
        Shape("out", 2048, 2048),
        Shape("gate_up", 8192, 2048, SWIGLU),
        Shape("down", 2048, 8192),
        Shape("head", 128256, 2048),
    ],
}


@dataclass(frozen=True)
class Figure:
    seconds: float
    peak: float
    """Operations per second."""
    read: float
    """Bytes per second."""


def measure(shape: Shape, dtype: int, rows: int, threads: int, index: int, seconds: float) -> Figure:
    """The lower decile of the repeats that fit into `seconds`, and the better of two looks at the ceilings."""
    size = shape.weights * (2 if dtype else 4)
    copies = max(1, ROTATED_BYTES // size) if rows <= FLAT_ROWS else 1
    split = {"threads": threads, "copies": copies}

    name = _runtime.matmul_table(dtype)[index][0]
    # What widens bfloat16 multiplies in float32.
    best = "float32 avx2" if name.endswith("avx2") else "bfloat16" if name.endswith("bf16") else "float32"

    def ceilings() -> tuple[float, float]:
        return _runtime.ceiling(best, threads), _runtime.ceiling("read", threads)

    before = ceilings()
    once = _runtime.time_matmul(dtype, index, rows, shape.n, shape.k, shape.epilogue, repeats=2, **split)[-1]
    repeats = min(400, max(3, int(seconds / once)))
    times = sorted(_runtime.time_matmul(dtype, index, rows, shape.n, shape.k, shape.epilogue, repeats=repeats, **split))
    after = ceilings()
    return Figure(times[len(times) // 10], max(before[0], after[0]), max(before[1], after[1]))


def report(shape: Shape, dtype: int, rows: int, threads: int, figure: Figure) -> str:
    operations = 2 * rows * shape.weights / figure.seconds
    read = shape.weights * (2 if dtype else 4) / figure.seconds
    return (
        f"{threads:7} {DTYPES[dtype]:8} {shape.name:8} {rows:5} {shape.n:7} {shape.k:5}"
        f" {figure.seconds * 1e6:9.0f} {operations / 1e9:9.1f} {100 * operations / figure.peak:6.1f}"
        f" {read / 1e9:7.1f} {100 * read / figure.read:6.1f}"
    )


HEADER = (
    f"{'threads':7} {'dtype':8} {'weight':8} {'rows':>5} {'n':>7} {'k':>5}"
    f" {'us':>9} {'GFLOP/s':>9} {'% peak':>6} {'GB/s':>7} {'% read':>6}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), nargs="+", default=sorted(MODELS))
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=list(DTYPES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 512])
    parser.add_argument("--kernel", type=int, default=0, help="index in the table, best first")
    parser.add_argument("--seconds", type=float, default=0.5, help="time given to each figure")
    options = parser.parse_args()
    for model in options.model:
        print(f"{model}, {_runtime.cpu_features()}")
        print(HEADER)
        for dtype in map(DTYPES.index, options.dtype):
            print("kernel:", _runtime.matmul_table(dtype)[options.kernel][0])
            for threads in options.threads:
                for shape in MODELS[model]:
                    for rows in options.rows:
                        if shape.name == "head" and rows > FLAT_ROWS:
                            continue  # logits are wanted for few rows
                        figure = measure(shape, dtype, rows, threads, options.kernel, options.seconds)
                        print(report(shape, dtype, rows, threads, figure), flush=True)


if __name__ == "__main__":
    main()
