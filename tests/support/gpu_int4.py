"""Weight-only int4 products on a device or in the interpreter, and the check of their result."""

from __future__ import annotations

from typing import Any

import numpy as np
from tolerances import rounding_tolerance, sum_tolerance

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import DenseProduct, Launch, Tensor
from tensorwright.plugins.quantized_matmul import dense_launch, launch
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


def run_dense(runner: Any, memory: Memory, case: Case, sm: int = 80) -> int:
    """Runs the kernels that a target with a library of dense products starts, and checks what the library gets.

    Returns how many products there are.
    """
    attrs, inputs, outputs, weights = case
    size = dense_launch.workspace_bytes(attrs, {"x": inputs["x"].shape})
    # Elements of x's type, so that the library's operand can be read back.
    workspace = memory.empty("workspace", (size // 2,), inputs["x"].dtype)
    dtypes = {name: tensor.dtype for name, tensor in {**inputs, **outputs}.items()}
    specs, products, first = dense_launch.kernels(attrs, dtypes, sm), 0, 0
    for one in dense_launch.launches(attrs, inputs, outputs, workspace, sm):
        if isinstance(one, Launch):
            runner.run(specs, [one], memory)
            continue
        _check_dense(case, one, first)
        w = memory.array("workspace")[: one.w.shape[0] * attrs["k"]].reshape(one.w.shape).astype(np.float32)
        columns = slice(first, first + len(w))
        values = weights.values.reshape(attrs["n"], -1)[columns, : attrs["k"]].astype(np.float32)
        scales = np.repeat(memory.array("scales").T[columns].astype(np.float32), attrs["group"], 1)[:, : attrs["k"]]
        exact = Memory()
        exact.put("w", values * scales, inputs["x"].dtype)
        np.testing.assert_array_equal(w, exact.array("w"), "a weight is its integer times its scale, rounded once")
        products, first = products + 1, first + len(w)
    assert first == attrs["n"]
    return products


def _check_dense(case: Case, one: DenseProduct, first: int) -> None:
    """A piece's operands are those of its columns."""
    _, inputs, outputs, _ = case
    assert one.x == inputs["x"]
    assert one.y.address == outputs["y"].address + first * outputs["y"].item_bytes
    assert (one.y.shape, one.y.strides) == ((one.x.shape[0], one.w.shape[0]), outputs["y"].strides)
    assert (one.bias is None) == ("bias" not in inputs)
    if one.bias is not None:
        assert one.bias.address == inputs["bias"].address + first * inputs["bias"].item_bytes
        assert one.bias.shape == (one.w.shape[0],)


def started(memory: Memory, case: Case, sm: int = 80) -> list[Launch]:
    attrs, inputs, outputs, _ = case
    size = launch.workspace_bytes(attrs, {"x": inputs["x"].shape})
    workspace = memory.empty("workspace", (size,), "int8") if size else None
    return launch.launches(attrs, inputs, outputs, workspace, sm)


def run(interpreter: Interpreter, memory: Memory, case: Case, launches: list[Launch], sm: int = 80) -> None:
    dtypes = {name: tensor.dtype for name, tensor in {**case[1], **case[2]}.items()}
    interpreter.run(launch.kernels(case[0], dtypes, sm), launches, memory)


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
