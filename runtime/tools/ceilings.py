"""Measures this machine's ceilings, with which ops of the engine are compared.

The roofline of an op is the time that its bytes or its arithmetic need at the ceilings, whichever is longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.runtime.engine import native

REPEATS = 32  # rounds of one or two milliseconds; the best round counts, so that a busy moment does no harm


@dataclass(frozen=True)
class Ceilings:
    """The highest rates per second with `threads` threads: bytes read from memory, and operations by type. A
    multiply-add counts as two operations.

    bfloat16 is None if the processor has no bf16 dot product; the kernels then compute in float32.
    """

    threads: int
    read: float
    float32: float
    bfloat16: float | None
    int8: float

    def peak(self, arithmetic: str) -> float:
        """Returns the operations per second of a type of arithmetic: "int8", "bfloat16" or "float32"."""
        if arithmetic == "int8":
            return self.int8
        return (self.bfloat16 if arithmetic == "bfloat16" else None) or self.float32

    def ideal_seconds(self, arithmetic: str, bytes_moved: float, operations: float) -> float:
        return max(bytes_moved / self.read, operations / self.peak(arithmetic))


def measure_ceilings(threads: int, rounds: int = REPEATS) -> Ceilings:
    """Measures the ceilings in less than a second, during which nothing else should run. rounds: of which the best
    counts. Raises IsaError if the processor has neither AVX2 nor NEON."""
    runtime = native.load_module()

    def rate(what: str) -> float:
        return float(runtime.ceiling(what, threads, rounds))

    features = runtime.cpu_features()
    bfloat16 = rate("bfloat16") if features["avx512_bf16"] or features["neon_bf16"] else None
    return Ceilings(threads, rate("read"), rate("float32"), bfloat16, rate("int8"))


def figures(ceilings: Ceilings) -> str:
    """Describes the ceilings in one line for people."""
    rates = {"int8": ceilings.int8, "bf16": ceilings.bfloat16, "fp32": ceilings.float32}
    peaks = [f"{name} {rate / 1e9:.0f} GOP/s" for name, rate in rates.items() if rate is not None]
    return ", ".join([f"read {ceilings.read / 1e9:.1f} GB/s", *peaks])


def describe(ceilings: Ceilings) -> str:
    """Describes the ceilings that a command measured at its start, in one line."""
    return f"ceilings measured at the start with {ceilings.threads} threads: {figures(ceilings)}"
