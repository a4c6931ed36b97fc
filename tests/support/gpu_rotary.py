"""rotary_kv_write on a device or in the interpreter, and the check of q, pages and scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from tolerances import rounding_tolerance

from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.paged_attention.quantize import KV_LEVELS, quantize_heads, quantize_heads_e4m3
from tensorwright.plugins.quantized_matmul.fp8 import to_codes
from tensorwright.plugins.rotary import launch
from tensorwright.plugins.rotary.op import rotate

BLOCKS, BLOCK_SIZE = 4, 32
ATTRS = {"heads": 4, "kv_heads": 2, "head_dim": 16, "rotary_dim": 16}
Case = tuple[dict[str, Tensor], dict[str, Tensor]]


def make(memory: Memory, tokens: int, attrs: dict[str, Any], dtype: str, cache: str, seed: int = 0) -> Case:
    """Tokens of several sequences: slots in no order, in several blocks. Without KV heads there are neither. cache: the
    type of the pages; "int8" with e4m3_kv among the attributes is E4M3."""
    rng = np.random.default_rng(seed)
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    pages = (BLOCKS, kv_heads, BLOCK_SIZE, head_dim)
    inputs = {
        "qkv": memory.put("qkv", rng.standard_normal((tokens, (heads + 2 * kv_heads) * head_dim)), dtype),
    }
    if kv_heads:
        inputs["slots"] = memory.put("slots", rng.permutation(BLOCKS * BLOCK_SIZE)[:tokens], "int32")
        inputs |= {name: memory.empty(name, pages, cache) for name in ("k_pages", "v_pages")}
    if attrs["rotary_dim"]:
        angles = rng.uniform(-9, 9, (tokens, attrs["rotary_dim"] // 2))
        inputs["table"] = memory.put("table", np.concatenate([np.cos(angles), np.sin(angles)], axis=1), "float32")
    if cache == "int8" and kv_heads:
        inputs |= {name: memory.empty(name, pages[:3], "float32") for name in ("k_scales", "v_scales")}
    outputs = {name: inputs[name] for name in inputs if name[1:] in ("_pages", "_scales")}
    return inputs, {**outputs, "q": memory.empty("q", (tokens, heads * head_dim), dtype)}


def run(interpreter: Interpreter, memory: Memory, case: Case, attrs: dict[str, Any]) -> None:
    dtypes = {name: tensor.dtype for name, tensor in case[0].items()}
    interpreter.run(launch.kernels(attrs, dtypes, 80), launch.launches(attrs, *case, None, 80), memory)


def check(memory: Memory, attrs: dict[str, Any]) -> None:
    """The definition's arithmetic is the kernel's, so that only the rounding to q's and the cache's type is left."""
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    qkv = memory.array("qkv").astype(np.float32)
    dtype = memory.blocks["qkv"].tensor.dtype
    tokens = len(qkv)
    parts = qkv.reshape(tokens, heads + 2 * kv_heads, head_dim)
    table = memory.array("table") if attrs["rotary_dim"] else np.zeros((tokens, 0), np.float32)
    near(memory.array("q").reshape(tokens, heads, head_dim), rotate(parts[:, :heads], table), dtype)
    if not kv_heads:
        return
    slots = memory.array("slots")
    for name, values in (
        ("k", rotate(parts[:, heads : heads + kv_heads], table)),
        ("v", parts[:, heads + kv_heads :]),
    ):
        pages = memory.array(f"{name}_pages")
        written = np.zeros((BLOCKS, kv_heads, BLOCK_SIZE), bool)
        kept = slots >= 0
        at = (slots[kept] // BLOCK_SIZE, slice(None), slots[kept] % BLOCK_SIZE)
        written[at] = True
        if pages.dtype == np.int8:
            if attrs.get("e4m3_kv", 0):
                q, scale = quantize_heads_e4m3(values[kept])
                q = to_codes(q).view(np.int8)
            else:
                q, scale = quantize_heads(values[kept], KV_LEVELS)
            np.testing.assert_array_equal(memory.array(f"{name}_scales")[at], scale)
            np.testing.assert_array_equal(pages[at], q)
            assert (pages[~written] == -1).all()
        else:
            near(pages[at], values[kept], dtype)
            assert np.isnan(pages[~written]).all(), "a slot was written that no token has"


def near(got: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    assert got.shape == wanted.shape
    difference = np.abs(got.astype(np.float64) - wanted)
    assert (difference <= rounding_tolerance(dtype, np.abs(wanted))).all()
