"""Computes our ops in ONNX's reference evaluator: the plugins' numpy definitions behind the plugin form's operands.

`evaluator(path)` runs a model of plugin_form.py, with pages as arrays. MatMul and Gemm are defined here too: in
narrow types, they sum in float32 and round once, as a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tensorwright.plugins.collectives.tensorrt import OPS as COLLECTIVES
from tensorwright.plugins.gpu.tensorrt_op import PluginOp
from tensorwright.plugins.paged_attention import op as paged_attention
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.quantized_matmul import fp8, weight_only
from tensorwright.plugins.quantized_matmul.quantize import Quantized
from tensorwright.plugins.rms_norm import op as rms_norm
from tensorwright.plugins.rotary import rotary_kv_write

DOMAIN = "tensorwright"


Meet = Callable[[PluginOp, np.ndarray, dict[str, Any]], np.ndarray]
"""Does with other ranks what a plugin does: the plugin, its first operand and its attributes. Returns the result."""


def evaluator(path: str | Path, meet: Meet | None = None) -> ReferenceEvaluator:
    """Returns an evaluator of a plugin form model: `run(None, inputs)` gives its outputs in order. meet: for the model
    of one rank of several."""
    together = [] if meet is None else [_together(op, meet) for op in COLLECTIVES]
    return ReferenceEvaluator(str(path), new_ops=[*OPS, *together])


def _together(op: PluginOp, meet: Meet) -> type[OpRun]:
    """Returns a class of the evaluator, named as the plugin."""

    def _run(self: Any, x: np.ndarray, *after: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        return (meet(op, np.ascontiguousarray(x), attrs),)

    return type(op.name, (OpRun,), {"op_domain": DOMAIN, "_run": _run})


def wide(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float32)


def norm_attrs(more: dict[str, Any]) -> dict[str, Any]:
    return {key: more[key] for key in ("eps", "weight_offset")}


class RmsNorm(OpRun):  # type: ignore[misc]
    """Normalises x [T, C] with w [C], float32."""

    op_domain = DOMAIN

    def _run(self, x: np.ndarray, w: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        (y,) = rms_norm.reference([wide(x), w], norm_attrs(attrs), "float32")
        return (y.astype(x.dtype),)


class AddRmsNorm(OpRun):  # type: ignore[misc]
    """Adds and normalises. The norm reads the sum as it is stored."""

    op_domain = DOMAIN

    def _run(self, x: np.ndarray, residual: np.ndarray, w: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        total = (wide(x) + wide(residual)).astype(x.dtype)
        (y,) = rms_norm.reference([wide(total), w], norm_attrs(attrs), "float32")
        return y.astype(x.dtype), total


class RotaryKvWrite(OpRun):  # type: ignore[misc]
    """Takes qkv, a table if rotary_dim is not 0, slots, pages, and scales if int8_kv is not 0."""

    op_domain = DOMAIN

    def _run(self, qkv: np.ndarray, *rest: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        table = rest[0] if attrs["rotary_dim"] else None
        slots, *pages = rest[1:] if attrs["rotary_dim"] else rest
        q, cache = rotary_kv_write.reference([wide(qkv), table, slots, cache_of(pages, attrs)], attrs, "float32")
        stored = [_stored(x, pages[0].dtype, attrs) for x in (cache.k, cache.v)]
        written = stored + [s for s in (cache.k_scale, cache.v_scale) if s is not None]
        return q.astype(qkv.dtype), *(new.astype(old.dtype) for new, old in zip(written, pages, strict=True))


class PagedAttention(OpRun):  # type: ignore[misc]
    """Takes q, pages, scales if int8_kv is not 0, seq_starts, context_lens, block_tables, and sinks if any."""

    op_domain = DOMAIN

    def _run(self, q: np.ndarray, *rest: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        count = 4 if attrs["int8_kv"] else 2
        operands = [wide(q), cache_of(list(rest[:count]), attrs), *rest[count:]]
        (y,) = paged_attention.reference(operands, attrs, "float32")
        return (y.astype(q.dtype),)


class WeightOnlyLinear(OpRun):  # type: ignore[misc]
    """Multiplies with `packed`: int32 [ceil(k / 8), n], element k in bits 4 (k % 8), two's complement."""

    op_domain = DOMAIN

    def _run(
        self,
        x: np.ndarray,
        packed: np.ndarray,
        scales: np.ndarray,
        bias: np.ndarray | None = None,
        **attrs: Any,
    ) -> tuple[np.ndarray, ...]:
        n, k, group = attrs["n"], attrs["k"], attrs["group"]
        nibbles = packed.view(np.uint32)[:, None] >> np.arange(0, 32, 4, dtype=np.uint32)[None, :, None] & 15
        signed = ((nibbles.astype(np.int8) ^ 8) - 8).reshape(-1, n)[:k]
        padded = np.zeros((len(scales) * group, n), np.int8)
        padded[:k] = signed
        values = padded.reshape(len(scales), group, n).transpose(2, 0, 1)
        made = Quantized(values, np.ascontiguousarray(wide(scales).T))
        operands = [wide(x), made, None if bias is None else wide(bias)]
        (y,) = weight_only.reference(operands, {"format": f"int4:g{group}"}, x.dtype.name)
        return (y.astype(x.dtype),)


class MatMul(OpRun):  # type: ignore[misc]
    """ONNX's MatMul, with float32 sums for narrow types."""

    def _run(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
        return ((wide(a) @ wide(b)).astype(a.dtype),)


class Gemm(OpRun):  # type: ignore[misc]
    """ONNX's Gemm of a transposed matrix without a third operand, which is the plugin form's only use of it."""

    def _run(self, a: np.ndarray, b: np.ndarray, **attrs: Any) -> tuple[np.ndarray, ...]:
        assert attrs["transB"] == 1
        assert attrs["transA"] == 0
        return ((wide(a) @ wide(b).T).astype(a.dtype),)


OPS: tuple[type[OpRun], ...] = (
    RmsNorm,
    AddRmsNorm,
    RotaryKvWrite,
    PagedAttention,
    WeightOnlyLinear,
    MatMul,
    Gemm,
)


def cache_of(pages: list[np.ndarray], attrs: dict[str, Any]) -> PagedCache:
    """Returns the cache of k, v and their scales, if there are any; the numbers of bytes are held as float32."""
    if attrs.get("e4m3_kv", 0):
        k, v = (fp8.from_codes(page.view(np.uint8)) for page in pages[:2])
        return PagedCache(k, v, "fp8", *pages[2:])
    k, v = (wide(page) for page in pages[:2])
    return PagedCache(k, v, pages[0].dtype.name, *pages[2:])


def _stored(x: np.ndarray, dtype: np.dtype[Any], attrs: dict[str, Any]) -> np.ndarray:
    """Returns numbers of the cache as pages hold them."""
    return fp8.to_codes(x).view(np.int8) if attrs.get("e4m3_kv", 0) else x.astype(dtype)
