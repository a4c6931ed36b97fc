"""Describes PagedAttention as a TensorRT plugin: a ragged batch over pages, with or without sinks, int8 or not.

With e4m3_kv the bytes of int8 pages are E4M3 numbers.
"""

from __future__ import annotations

from tensorwright.plugins.gpu.tensorrt_op import ACTIVATION, PAGES, Attrs, Operand, PluginOp
from tensorwright.plugins.paged_attention import launch

PAGE = ("pages", "kv_heads", "block_size", "head_dim")
SCALE = ("pages", "kv_heads", "block_size")


def width(attrs: Attrs) -> int:
    """Returns the columns of all heads."""
    heads: int = attrs["heads"] * attrs["head_dim"]
    return heads


PAGED_ATTENTION = PluginOp(
    "PagedAttention",
    attrs={
        "heads": int, "kv_heads": int, "head_dim": int, "scale": float, "window": int, "softcap": float,
        "has_sinks": int, "int8_kv": int, "e4m3_kv": int,
    },
    defaults={"e4m3_kv": 0},
    inputs=(
        Operand("q", ACTIVATION, ("tokens", width)),
        Operand("k_pages", PAGES, PAGE),
        Operand("v_pages", PAGES, PAGE),
        Operand("k_scales", "float32", SCALE, when="int8_kv"),
        Operand("v_scales", "float32", SCALE, when="int8_kv"),
        Operand("seq_starts", "int32", ("seqs + 1",)),
        Operand("context_lens", "int32", ("seqs",)),
        Operand("block_tables", "int32", ("seqs", "max_blocks")),
        Operand("sinks", "float32", ("heads",), when="has_sinks"),
    ),
    outputs=(Operand("out", ACTIVATION, ("tokens", width)),),
    kernels=launch.kernels,
    launches=launch.launches,
    workspace_bytes=launch.workspace_bytes,
    kernel_sizes=("block_size",),
)  # fmt: skip
