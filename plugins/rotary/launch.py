"""Makes the launches of rotary_kv_write.

    inputs   qkv [T, (H + 2 Hkv) D], table [T, rotary_dim] float32 (absent at rotary_dim 0), slots [T] int32,
             k_pages, v_pages [P, Hkv, block_size, D], for int8 also k_scales, v_scales [P, Hkv, block_size] float32
    outputs  q [T, H D]; k_pages, v_pages, k_scales, v_scales: the same memory as the inputs of these names
attrs: heads, kv_heads, head_dim, rotary_dim, e4m3_kv. Pages are of qkv's type or int8, whose bytes are E4M3 numbers if
e4m3_kv, which may be absent, is not 0. A token whose slot is negative is not
written to the cache. With kv_heads 0, of a layer that reads what another one wrote, there are no slots and no pages.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.rotary.gpu"
ELEMENTS = 1024
"""Elements of a program: 8 of each half for each of 64 threads."""
MAX_HEAD_DIM = 1024


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (_spec(attrs, dtypes["qkv"], dtypes.get("k_pages", "")),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens."""
    qkv, pages = inputs["qkv"], inputs.get("k_pages")
    _check(attrs, inputs, outputs)
    tokens = qkv.shape[0]
    if tokens == 0:
        return []
    spec = _spec(attrs, qkv.dtype, "" if pages is None else pages.dtype)
    values: dict[str, Any] = {
        **{name: inputs[name] for name, _ in spec.signature if name in inputs},
        "q": outputs["q"],
    }
    if pages is not None:
        page_stride, head_stride, *_ = pages.strides
        values |= {"page_stride": page_stride, "head_stride": head_stride, "block_size": pages.shape[2]}
    block = _heads_of_a_program(attrs["heads"], attrs["kv_heads"], attrs["head_dim"])
    parts = ceil_div(attrs["heads"], block) + 2 * ceil_div(attrs["kv_heads"], block)
    return [make_launch(spec, grid_of(tokens, parts), values)]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _check(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    qkv = inputs["qkv"]
    tokens, dtype = qkv.shape[0], qkv.dtype
    require_shape(qkv, (tokens, (heads + 2 * kv_heads) * head_dim), dtype)
    require_shape(outputs["q"], (tokens, heads * head_dim), dtype)
    if attrs["rotary_dim"]:
        require_shape(inputs["table"], (tokens, attrs["rotary_dim"]), "float32")
    require_dense(*inputs.values(), outputs["q"])
    if kv_heads:
        _check_pages(attrs, inputs, outputs)


def _check_pages(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    pages, kv_heads, head_dim = inputs["k_pages"], attrs["kv_heads"], attrs["head_dim"]
    require_shape(inputs["slots"], inputs["qkv"].shape[:1], "int32")
    cached = (pages.shape[0], kv_heads, pages.shape[2], head_dim)
    for name in ("k_pages", "v_pages"):
        require_shape(inputs[name], cached, pages.dtype)
    names = ["k_pages", "v_pages"]
    if pages.dtype == "int8":
        names += ["k_scales", "v_scales"]
        for name in names[2:]:
            require_shape(inputs[name], cached[:3], "float32")
    for name in names:
        if outputs[name].address != inputs[name].address:
            raise KernelError(f"rotary_kv_write writes {name} in place: the output must have the input's address")


def _heads_of_a_program(heads: int, kv_heads: int, head_dim: int) -> int:
    most = next_power_of_2(max(heads, kv_heads))
    return min(max(ELEMENTS // next_power_of_2(head_dim), 1), most)


def _spec(attrs: Mapping[str, Any], dtype: str, cache_dtype: str) -> KernelSpec:
    sizes = (attrs[name] for name in ("heads", "kv_heads", "head_dim", "rotary_dim"))
    return _specialised(*sizes, bool(attrs.get("e4m3_kv", 0)), dtype, cache_dtype)


@functools.cache
def _specialised(
    heads: int, kv_heads: int, head_dim: int, rotary_dim: int, e4m3: bool, dtype: str, cache_dtype: str
) -> KernelSpec:
    if kv_heads and cache_dtype not in (dtype, "int8"):
        raise KernelError(f"rotary_kv_write: pages must be {dtype} or int8, got {cache_dtype}")
    if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim or not 1 <= head_dim <= MAX_HEAD_DIM:
        raise KernelError(
            f"rotary_kv_write: rotary_dim must be even and at most head_dim, which must be at most {MAX_HEAD_DIM}; "
            f"got rotary_dim {rotary_dim}, head_dim {head_dim}"
        )
    quantized, half, rest = cache_dtype == "int8", rotary_dim // 2, head_dim - rotary_dim
    page = POINTERS[cache_dtype] if kv_heads else None
    scales = "*fp32" if quantized else None
    kinds = {
        "qkv": POINTERS[dtype], "table": "*fp32" if rotary_dim else None, "slots": "*i32" if kv_heads else None,
        "q": POINTERS[dtype], "k_pages": page, "v_pages": page, "k_scales": scales, "v_scales": scales,
        "page_stride": "i64" if kv_heads else None, "head_stride": "i32" if kv_heads else None,
        "block_size": "i32" if kv_heads else None,
    }  # fmt: skip
    if e4m3 and kv_heads and not quantized:
        raise KernelError(f"rotary_kv_write: pages of E4M3 numbers must be int8, got {cache_dtype}")
    sizes = {
        "H": heads,
        "KV": kv_heads,
        "D": head_dim,
        "HALF": half,
        "HALF_BLOCK": next_power_of_2(half) if half else 0,
        "REST_BLOCK": next_power_of_2(rest) if rest else 0,
        "HEADS": _heads_of_a_program(heads, kv_heads, head_dim),
        "QUANTIZED": quantized,
        "E4M3": e4m3 and quantized,
    }
    # Heads begin at multiples of 16 bytes if this holds. Page and head strides are then multiples of 16 elements too.
    wide = head_dim % 16 == 0
    signature = tuple((name, kind) for name, kind in kinds.items() if kind)
    aligned = tuple(name for name, _ in signature if name not in ("slots", "block_size"))
    return KernelSpec(
        kernel="rotary_kv_write_kernel",
        module=MODULE,
        signature=signature,
        constants=(*((name, None) for name, kind in kinds.items() if kind is None), *sizes.items()),
        aligned=aligned if wide else (),
        num_warps=2,
        fp_fusion=False,
        later=() if sizes["E4M3"] else ("E4M3",),
    )
