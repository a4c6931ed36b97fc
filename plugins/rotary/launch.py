"""Makes the launches of rotary_kv_write.

    inputs   qkv [T, (H + 2 Hkv) D], table [T, rotary_dim] float32 (absent at rotary_dim 0), slots [T] int32,
             k_pages, v_pages [P, Hkv, block_size, D], for int8 also k_scales, v_scales [P, Hkv, block_size] float32
    outputs  q [T, H D]; k_pages, v_pages, k_scales, v_scales: the same memory as the inputs of these names
attrs: heads, kv_heads, head_dim, rotary_dim. Pages are of qkv's type or int8. A token whose slot is negative is not
written to the cache.
"""

from __future__ import annotations

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
    return (_spec(attrs, dtypes["qkv"], dtypes["k_pages"]),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens."""
    qkv, pages = inputs["qkv"], inputs["k_pages"]
    _check(attrs, inputs, outputs)
    tokens = qkv.shape[0]
    if tokens == 0:
        return []
    spec = _spec(attrs, qkv.dtype, pages.dtype)
    values: dict[str, Any] = {
        **{name: inputs[name] for name, _ in spec.signature if name in inputs},
        "q": outputs["q"],
        "page_stride": pages.strides[0],
        "head_stride": pages.strides[1],
        "block_size": pages.shape[2],
    }
    block = _heads_of_a_program(attrs)
    parts = ceil_div(attrs["heads"], block) + 2 * ceil_div(attrs["kv_heads"], block)
    return [make_launch(spec, grid_of(tokens, parts), values)]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _check(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    qkv, pages = inputs["qkv"], inputs["k_pages"]
    tokens, dtype = qkv.shape[0], qkv.dtype
    require_shape(qkv, (tokens, (heads + 2 * kv_heads) * head_dim), dtype)
    require_shape(outputs["q"], (tokens, heads * head_dim), dtype)
    require_shape(inputs["slots"], (tokens,), "int32")
    if attrs["rotary_dim"]:
        require_shape(inputs["table"], (tokens, attrs["rotary_dim"]), "float32")
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
    require_dense(*inputs.values(), outputs["q"])


def _heads_of_a_program(attrs: Mapping[str, Any]) -> int:
    most = next_power_of_2(max(attrs["heads"], attrs["kv_heads"]))
    return min(max(ELEMENTS // next_power_of_2(attrs["head_dim"]), 1), most)


def _spec(attrs: Mapping[str, Any], dtype: str, cache_dtype: str) -> KernelSpec:
    head_dim, rotary_dim = attrs["head_dim"], attrs["rotary_dim"]
    if cache_dtype not in (dtype, "int8"):
        raise KernelError(f"rotary_kv_write: pages must be {dtype} or int8, got {cache_dtype}")
    if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim or not 1 <= head_dim <= MAX_HEAD_DIM:
        raise KernelError(
            f"rotary_kv_write: rotary_dim must be even and at most head_dim, which must be at most {MAX_HEAD_DIM}; "
            f"got rotary_dim {rotary_dim}, head_dim {head_dim}"
        )
    quantized, half, rest = cache_dtype == "int8", rotary_dim // 2, head_dim - rotary_dim
    page = POINTERS[cache_dtype]
    scales = (("k_scales", "*fp32"), ("v_scales", "*fp32"))
    tensors = (
        ("qkv", POINTERS[dtype]),
        *((("table", "*fp32"),) if rotary_dim else ()),
        ("slots", "*i32"),
        ("q", POINTERS[dtype]),
        ("k_pages", page),
        ("v_pages", page),
        *(scales if quantized else ()),
    )
    absent = [*([] if rotary_dim else ["table"]), *([] if quantized else ["k_scales", "v_scales"])]
    sizes = {
        "H": attrs["heads"],
        "KV": attrs["kv_heads"],
        "D": head_dim,
        "HALF": half,
        "HALF_BLOCK": next_power_of_2(half) if half else 0,
        "REST_BLOCK": next_power_of_2(rest) if rest else 0,
        "HEADS": _heads_of_a_program(attrs),
        "QUANTIZED": quantized,
    }
    # Heads begin at multiples of 16 bytes if this holds. Page and head strides are then multiples of 16 elements too.
    wide = head_dim % 16 == 0
    pointers = tuple(name for name, _ in tensors if name != "slots")
    return KernelSpec(
        kernel="rotary_kv_write_kernel",
        module=MODULE,
        signature=(*tensors, ("page_stride", "i64"), ("head_stride", "i32"), ("block_size", "i32")),
        constants=(*((name, None) for name in absent), *sizes.items()),
        aligned=(*pointers, "page_stride", "head_stride") if wide else (),
        num_warps=2,
        fp_fusion=False,
    )
