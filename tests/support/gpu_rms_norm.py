"""rms_norm and add_rms_norm on a device or in the interpreter, and the check of their result."""

from __future__ import annotations

import numpy as np
from tolerances import function_tolerance, rounding_tolerance, sum_tolerance

from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.rms_norm import launch
from tensorwright.plugins.rms_norm.op import normalise

ATTRS = {"eps": 1e-5, "weight_offset": 1.0}
DTYPES = ("float32", "float16", "bfloat16")


def run(interpreter: Interpreter, rows: int, channels: int, dtype: str, with_sum: bool) -> Memory:
    rng = np.random.default_rng(rows + channels)
    memory = Memory()
    inputs = {"x": memory.put("x", rng.standard_normal((rows, channels)), dtype)}
    outputs = {"y": memory.empty("y", (rows, channels), dtype)}
    if with_sum:
        inputs["residual"] = memory.put("residual", 3 * rng.standard_normal((rows, channels)), dtype)
        outputs["sum"] = memory.empty("sum", (rows, channels), dtype)
    inputs["w"] = memory.put("w", rng.standard_normal(channels), "float32")
    dtypes = {name: tensor.dtype for name, tensor in inputs.items()}
    specs = launch.kernels({**ATTRS, "channels": channels}, dtypes, 80)
    interpreter.run(specs, launch.launches(ATTRS, inputs, outputs, None, 80), memory)
    return memory


def check(memory: Memory, dtype: str) -> None:
    """y is the norm of the sum as stored. The kernel sums float32 squares, the definition float64."""
    x = memory.array("x").astype(np.float32)
    if "sum" in memory.blocks:
        exact = x.astype(np.float64) + memory.array("residual")
        total = memory.array("sum").astype(np.float64)
        assert np.abs(total - exact).max(initial=0) <= rounding_tolerance(dtype, np.abs(exact).max(initial=0))
        x = memory.array("sum").astype(np.float32)
    wanted = normalise(x, memory.array("w"), **ATTRS)
    largest = np.abs(wanted).max(initial=0)
    # The mean's relative error counts half through the root; three products are rounded.
    tolerance = sum_tolerance("float32", x.shape[1], largest) / 2 + function_tolerance("float32", largest)
    tolerance += rounding_tolerance("float32", largest, 3) + rounding_tolerance(dtype, largest)
    got = memory.array("y").astype(np.float64)
    assert np.isfinite(got).all()
    assert np.abs(got - wanted).max(initial=0) <= tolerance
