"""Describes WeightOnlyLinear as a TensorRT plugin: int4 weights in groups, activations not rounded."""

from __future__ import annotations

from tensorwright.plugins.gpu.launch import ceil_div
from tensorwright.plugins.gpu.tensorrt_op import ACTIVATION, WIDE, Attrs, Operand, PluginOp
from tensorwright.plugins.quantized_matmul import launch

WEIGHTS_OF_A_WORD = 8


def words(attrs: Attrs) -> int:
    """Returns the rows of packed: each int32 holds eight weights of a column."""
    return ceil_div(attrs["k"], WEIGHTS_OF_A_WORD)


def groups(attrs: Attrs) -> int:
    """Returns the rows of scales."""
    return ceil_div(attrs["k"], attrs["group"])


WEIGHT_ONLY_LINEAR = PluginOp(
    "WeightOnlyLinear",
    attrs={"n": int, "k": int, "group": int},
    inputs=(
        Operand("x", ACTIVATION, ("rows", "k")),
        Operand("packed", "int32", (words, "n")),
        Operand("scales", ACTIVATION, (groups, "n")),
        Operand("bias", WIDE, ("n",), optional=True),
    ),
    outputs=(Operand("y", ACTIVATION, ("rows", "n")),),
    kernels=launch.kernels,
    launches=launch.launches,
    workspace_bytes=launch.workspace_bytes,
)
