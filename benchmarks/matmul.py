"""How close the matmul kernels come to what the machine allows.

For every shape of a model, prints GFLOP/s, GB/s of weights and the part of the ceiling reached. The ceilings are
measured right before and after each figure, since shared machines drift: dot or FMA peak of the kernel's instruction
set for operations, streaming reads for bytes; "% roof" is of whichever allows less. Weights rotate through memory in
decode (few rows), as the layers of a model do. Weight-only formats (fp8, int4:wo) multiply activations as they are, in
the type that --activations names.

    python benchmarks/matmul.py --model qwen2.5-0.5b --dtype bfloat16 int4:g32 w8a8 --threads 1 2
    python benchmarks/matmul.py --model qwen2.5-0.5b --weight gate_up down --dtype fp8 int4:wo --rows 1 512
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.engine_format.weight_formats import WeightFormat, parse_format
from tensorwright.runtime import _runtime, _testing

DTYPES = ("float32", "bfloat16")
QUANTIZED = (
    "int8:g32", "int4:g32", "int4:g128", "uint4:g128", "mxfp4", "w4a8:g32", "w4a8:g128", "w8a8",
    "int8:g32:2:4", "int4:g32:2:4",
    "fp8", "fp8:g128", "int8:wo", "uint8:wo", "int4:wo", "uint4:wo", "mxfp4:wo",
)  # fmt: skip
LANES = 16
SWIGLU = 1
FLAT_ROWS = 16
ROTATED_BYTES = 256 << 20
"""More than any cache holds, and little enough for a machine's memory."""


@dataclass(frozen=True)
class Shape:
    """A weight matrix with k inputs and n output columns (those of the result, after swiglu)."""

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
    "llama-3.1-8b": [
        Shape("qkv", 6144, 4096),
        Shape("out", 4096, 4096),
        Shape("gate_up", 14336, 4096, SWIGLU),
        Shape("down", 4096, 14336),
        Shape("head", 128256, 4096),
    ],
}


@dataclass(frozen=True)
class Kernel:
    """One entry of the table of a dtype or of a format of quantized weights. index: among those that run here."""

    dtype: str
    index: int
    activations: str = "bfloat16"
    """The type of x beside weight-only formats."""

    @property
    def format(self) -> WeightFormat | None:
        return None if self.dtype in DTYPES else parse_format(self.dtype)

    @property
    def table(self) -> list[tuple[str, str, bool]]:
        """(name, instruction set, whether it runs here) of all kernels, best first."""
        if self.format is None:
            return list(_testing.matmul_table(DTYPES.index(self.dtype)))
        if self.format.keeps_activations:
            return list(_testing.weight_only_matmul_table(DTYPES.index(self.activations)))
        return list(_testing.quantized_matmul_table(NUMBERS[self.format.codec]))

    @property
    def place(self) -> int:
        """Its place in the table."""
        return [i for i, (_, _, runs) in enumerate(self.table) if runs][self.index]

    @property
    def name(self) -> str:
        return self.table[self.place][0]

    @property
    def level(self) -> str:
        """Returns the set of instructions that has a ceiling of its own, or nothing: tiles have the highest."""
        last = self.name.rpartition("_")[2]
        return "avx512" if last == "avx512vnni" else "avx2" if last == "avx2" else ""

    @property
    def ceiling(self) -> str:
        """Returns the ceiling of its operations. A kernel that widens bfloat16 multiplies in float32."""
        if self.format is not None and not self.format.keeps_activations:
            return f"int8 {self.level}" if self.level else "int8"
        if self.name.endswith("avx512bf16"):
            return "bfloat16 avx512"
        return (
            "bfloat16" if self.name.endswith("amx") else f"float32 {self.level}" if self.level == "avx2" else "float32"
        )

    def bytes(self, shape: Shape) -> int:
        """Returns the bytes of the weights as stored, with scales."""
        if self.format is None:
            return shape.weights * (4 if self.dtype == "float32" else 2)
        return shape.weights // shape.k // LANES * self.format.panel_bytes(shape.k)

    def time(self, shape: Shape, rows: int, repeats: int, threads: int, copies: int) -> list[float]:
        how = {
            "rows": rows, "n": shape.n, "k": shape.k, "epilogue": shape.epilogue,
            "threads": threads, "repeats": repeats, "copies": copies,
        }  # fmt: skip
        if self.format is None:
            return _testing.time_matmul(DTYPES.index(self.dtype), self.place, **how)
        weights = (NUMBERS[self.format.codec], self.format.group)
        if self.format.keeps_activations:
            x = DTYPES.index(self.activations)
            return _testing.time_weight_only_matmul(x, self.place, *weights, **how)
        return _testing.time_quantized_matmul(*weights, self.place, **how)


@dataclass(frozen=True)
class Figure:
    seconds: float
    peak: float
    """The ceiling of operations per second."""
    read: float
    """The ceiling of bytes read per second."""


def measure(shape: Shape, kernel: Kernel, rows: int, threads: int, seconds: float) -> Figure:
    """Returns the lower decile of the repeats that fit into `seconds`, and the better of two readings of ceilings."""
    copies = max(1, ROTATED_BYTES // kernel.bytes(shape)) if rows <= FLAT_ROWS else 1

    def ceilings() -> tuple[float, float]:
        return _runtime.ceiling(kernel.ceiling, threads), _runtime.ceiling("read", threads)

    before = ceilings()
    once = kernel.time(shape, rows, 2, threads, copies)[-1]
    repeats = min(400, max(3, int(seconds / once)))
    times = sorted(kernel.time(shape, rows, repeats, threads, copies))
    after = ceilings()
    return Figure(times[len(times) // 10], max(before[0], after[0]), max(before[1], after[1]))


def report(shape: Shape, kernel: Kernel, rows: int, threads: int, figure: Figure) -> str:
    operations = 2 * rows * shape.weights / figure.seconds
    read = kernel.bytes(shape) / figure.seconds
    roof = max(operations / figure.peak, read / figure.read)
    return (
        f"{threads:7} {kernel.dtype:12} {shape.name:8} {rows:5} {shape.n:7} {shape.k:5}"
        f" {figure.seconds * 1e6:9.0f} {operations / 1e9:9.1f} {100 * operations / figure.peak:6.1f}"
        f" {read / 1e9:7.1f} {100 * read / figure.read:6.1f} {100 * roof:6.1f}"
    )


HEADER = (
    f"{'threads':7} {'dtype':12} {'weight':8} {'rows':>5} {'n':>7} {'k':>5}"
    f" {'us':>9} {'GFLOP/s':>9} {'% peak':>6} {'GB/s':>7} {'% read':>6} {'% roof':>6}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), nargs="+", default=sorted(MODELS))
    parser.add_argument("--dtype", nargs="+", default=[*DTYPES, *QUANTIZED], help="dtypes and formats of weights")
    parser.add_argument("--weight", nargs="+", help="names of the weights that are measured; all without it")
    parser.add_argument("--activations", choices=DTYPES, default="bfloat16", help="of weight-only formats")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 96, 512])
    parser.add_argument("--kernel", type=int, default=0, help="index among the kernels that run here, best first")
    parser.add_argument("--seconds", type=float, default=0.5, help="time given to each figure")
    options = parser.parse_args()
    for model in options.model:
        print(f"{model}, {_runtime.cpu_features()}")
        print(HEADER)
        for kernel in (Kernel(dtype, options.kernel, options.activations) for dtype in options.dtype):
            print("kernel:", kernel.name)
            for threads in options.threads:
                for shape in MODELS[model]:
                    for rows in options.rows:
                        if options.weight and shape.name not in options.weight:
                            continue
                        if shape.name == "head" and rows > FLAT_ROWS:
                            continue  # logits are computed for few rows only
                        figure = measure(shape, kernel, rows, threads, options.seconds)
                        print(report(shape, kernel, rows, threads, figure), flush=True)


if __name__ == "__main__":
    main()
