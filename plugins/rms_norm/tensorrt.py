"""Describes AddRmsNorm and RmsNorm as TensorRT plugins."""

from __future__ import annotations

from tensorwright.plugins.gpu.tensorrt_op import ACTIVATION, Operand, PluginOp
from tensorwright.plugins.rms_norm import launch

ATTRS = {"eps": float, "weight_offset": float}
ROWS = ("rows", "channels")

ADD_RMS_NORM = PluginOp(
    "AddRmsNorm",
    attrs=ATTRS,
    inputs=(
        Operand("x", ACTIVATION, ROWS),
        Operand("residual", ACTIVATION, ROWS),
        Operand("w", "float32", ("channels",)),
    ),
    outputs=(Operand("y", ACTIVATION, ROWS), Operand("sum", ACTIVATION, ROWS)),
    kernels=launch.kernels,
    launches=launch.launches,
    kernel_sizes=("channels",),
)
RMS_NORM = PluginOp(
    "RmsNorm",
    attrs=ATTRS,
    inputs=(Operand("x", ACTIVATION, ROWS), Operand("w", "float32", ("channels",))),
    outputs=(Operand("y", ACTIVATION, ROWS),),
    kernels=launch.kernels,
    launches=launch.launches,
    kernel_sizes=("channels",),
)
