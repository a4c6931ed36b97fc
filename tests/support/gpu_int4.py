"""Weight-only int4 products on a device or in the interpreter, and the check of their result."""

from __future__ import annotations

from typing import Any

import numpy as np
from tolerances import rounding_tolerance, sum_tolerance

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import Launch, Tensor
from tensorwright.plugins.quantized_matmul import launch
from tensorwright.plugins.quantized_matmul.quantize import Quantized, dequantized, quantize_weights

Case = tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor], Quantized]


def packed_words(values: np.ndarray) -> np.ndarray:
    """int8 [N, K] in [-8, 7] -> int32 [ceil(K / 8), N]: element k is bits 4 (k % 8) of word k / 8."""
    padded = np.pad(values, [(0, 0), (0, -values.shape[1] % 8)]).astype(np.uint32) & 15
    words = np.zeros((padded.shape[1] // 8, len(padded)), np.uint32)
    for j in range(8):
        words |= padded[:, j::8].T << np.uint32(4 * j)
    return words.view(np.int32)


def make(
    memory: Memory, tokens: int, n: int, k: int, group: int, dtype: str, *, bias: str | None = None, out: str = ""
) -> Case:
    rng = np.random.default_rng(tokens + n + k)
    weights = quantize_weights(rng.standard_normal((n, k)).astype(np.float32), WeightFormat(4, group))
    values = weights.values.reshape(n, -1)[:, :k]
    inputs = {
        "x": memory.put("x", rng.standard_normal((tokens, k)), dtype),
        "packed": memory.put("packed", packed_words(values), "int32"),
        "scales": memory.put("scales", weights.scales.T, dtype),
    }
    if bias:
        inputs["bias"] = memory.put("bias", rng.standard_normal(n), bias)
    return {"n": n, "k": k, "group": group}, inputs, {"y": memory.empty("y", (tokens, n), out or dtype)}, weights


def started(memory: Memory, case: Case, sm: int = 80) -> list[Launch]:
    attrs, inputs, outputs, _ = case
    size = launch.workspace_bytes(attrs, {"x": inputs["x"].shape})
    workspace = memory.empty("workspace", (size,), "int8") if size else None
    return launch.launches(attrs, inputs, outputs, workspace, sm)


def run(interpreter: Interpreter, memory: Memory, case: Case, launches: list[Launch]) -> None:
    dtypes = {name: tensor.dtype for name, tensor in {**case[1], **case[2]}.items()}
    interpreter.run(launch.kernels(case[0], dtypes, 80), launches, memory)


def check(memory: Memory, case: Case) -> None:
    """Scales are bfloat16 numbers, which float16 holds in the range of these; so only sums and the result round."""
    attrs, inputs, outputs, weights = case
    x = memory.array("x").astype(np.float64)
    w = dequantized(Quantized(weights.values, memory.array("scales").T.astype(np.float32)), attrs["k"])
    np.testing.assert_array_equal(memory.array("scales").T, weights.scales)
    bias = memory.array("bias").astype(np.float64) if "bias" in inputs else np.zeros(attrs["n"])
    wanted = x @ w.astype(np.float64).T + bias
    magnitude = np.abs(x) @ np.abs(w.astype(np.float64)).T + np.abs(bias)
    tolerance = sum_tolerance("float32", attrs["k"] + 1, magnitude)
    tolerance += rounding_tolerance(outputs["y"].dtype, np.abs(wanted))
    difference = np.abs(memory.array("y").astype(np.float64) - wanted)
    assert difference.shape == outputs["y"].shape
    assert (difference <= tolerance).all(), float((difference / tolerance).max())
