"""Describes RotaryKvWrite as a TensorRT plugin: it rotates q, and puts K and V into the pages, in place.

With e4m3_kv the bytes of int8 pages are E4M3 numbers.
"""

from __future__ import annotations

from tensorwright.plugins.gpu.tensorrt_op import ACTIVATION, PAGES, Attrs, Operand, PluginOp
from tensorwright.plugins.rotary import launch

PAGE = ("pages", "kv_heads", "block_size", "head_dim")
SCALE = ("pages", "kv_heads", "block_size")


def qkv_width(attrs: Attrs) -> int:
    """Returns the columns of all heads of q, of k and of v."""
    heads: int = attrs["heads"] + 2 * attrs["kv_heads"]
    return heads * int(attrs["head_dim"])


def q_width(attrs: Attrs) -> int:
    """Returns the columns of the heads of q."""
    return int(attrs["heads"]) * int(attrs["head_dim"])


ROTARY_KV_WRITE = PluginOp(
    "RotaryKvWrite",
    attrs={"heads": int, "kv_heads": int, "head_dim": int, "rotary_dim": int, "int8_kv": int, "e4m3_kv": int},
    defaults={"int8_kv": 0, "e4m3_kv": 0},
    inputs=(
        Operand("qkv", ACTIVATION, ("tokens", qkv_width)),
        Operand("table", "float32", ("tokens", "rotary_dim"), when="rotary_dim"),
        Operand("slots", "int32", ("tokens",)),
        Operand("k_pages", PAGES, PAGE),
        Operand("v_pages", PAGES, PAGE),
        Operand("k_scales", "float32", SCALE, when="int8_kv"),
        Operand("v_scales", "float32", SCALE, when="int8_kv"),
    ),
    outputs=(
        Operand("q", ACTIVATION, ("tokens", q_width)),
        Operand("k_pages_out", PAGES, PAGE, alias="k_pages"),
        Operand("v_pages_out", PAGES, PAGE, alias="v_pages"),
        Operand("k_scales_out", "float32", SCALE, when="int8_kv", alias="k_scales"),
        Operand("v_scales_out", "float32", SCALE, when="int8_kv", alias="v_scales"),
    ),
    kernels=launch.kernels,
    launches=launch.launches,
)
