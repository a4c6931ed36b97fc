"""Lists the element types by name, their sizes, and the short names that users may write."""

from __future__ import annotations

BITS = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float8_e8m0fnu": 8,
    "float4_e2m1fn_x2": 8,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
    "int4": 4,
    "uint4": 4,
    "mxfp4": 4,
    "w4a8": 4,
    "int3": 3,
    "uint3": 3,
    "int2": 2,
    "uint2": 2,
    "uint64": 64,
    "uint32": 32,
    "uint16": 16,
    "uint8": 8,
    "bool": 8,
}
"""The bits of one stored element of each type. Those of fewer than 8 share bytes; float4_e2m1fn_x2 is such a byte."""

ITEM_BYTES = {dtype: bits // 8 for dtype, bits in BITS.items() if bits >= 8}
"""The bytes of one element of each type that has whole bytes."""

NUMBERS = {
    name: i
    for i, name in enumerate((
        "float32", "bfloat16", "int32", "int8", "int4", "mxfp4",
        "uint8", "uint4", "int8_fp16", "int4_fp16", "uint8_fp16", "uint4_fp16",
        "int3", "int2", "uint3", "uint2", "int3_fp16", "int2_fp16", "uint3_fp16", "uint2_fp16",
        "float8_e4m3fn",
        "w4a8", "int8_sparse", "int4_sparse",
    ))
}  # fmt: skip
"""The number of each type in a plan of target cpu and in its kernels: tw_dtype of plugins/common/kernel_types.h.
Quantized weights have the names of `WeightFormat.codec`."""

DTYPES = ("float32", "float16", "bfloat16")
"""The types that the activations of an engine can have. `targets.TARGETS` says which of them a target has."""

SHORT_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}
"""Each short name and the full name, which engines, messages and the cache use."""


def full_name(dtype: str) -> str:
    """Returns the full name of a type: "bf16" becomes "bfloat16". Any other value comes back unchanged, and the caller
    refuses it."""
    return SHORT_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
