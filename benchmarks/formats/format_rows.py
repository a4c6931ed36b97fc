"""Lists the engines that benchmarks/quantization_accuracy.py measures. A line here makes a row of docs/quantization.md.

A name is a type of activations or what `--quantize` takes, and then, after " + ", the type of a KV cache or the parts
of a calibration: "int4:g32 + int8 KV cache", "int4:g128 + awq + gptq".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

REFERENCE = "float32"
"""The row whose logits the others are compared with."""
BASE = "bfloat16"
"""The row whose perplexity the others are compared with. All rows but the reference have these activations."""

FORMATS = (
    REFERENCE,
    BASE,
    "int8:g32",
    "int8:g64",
    "int8:g128",
    "int8:g32:wo",
    "uint8:g128",
    "w8a8",
    "w8a8,embedding=none,lm_head=none",
    "fp8",
    "fp8:g128",
    "int4:g32",
    "int4:g64",
    "int4:g128",
    "int4:g32:fp16",
    "int4:g32:wo",
    "int4:g32,embedding=int8,lm_head=int8",
    "int4:g64,embedding=int8,lm_head=int8",
    "int4:g128,embedding=int8,lm_head=int8",
    "uint4:g32",
    "uint4:g64",
    "uint4:g128",
    "uint4:g128:fp16",
    "uint4:g32,embedding=int8,lm_head=int8",
    "w4a8:g32",
    "w4a8:g64",
    "w4a8:g128",
    "w4a8:g32,embedding=int8,lm_head=int8",
    "w4a8:g64,embedding=int8,lm_head=int8",
    "mxfp4",
    "mxfp4:wo",
    "mxfp4,embedding=int8,lm_head=int8",
    "int3:g32",
    "int3:g32,embedding=int8,lm_head=int8",
    "uint3:g32",
    "uint3:g32,embedding=int8,lm_head=int8",
    "uint3:g64,embedding=int8,lm_head=int8",
    "uint3:g128,embedding=int8,lm_head=int8",
    "int2:g32,embedding=int8,lm_head=int8",
    "uint2:g32,embedding=int8,lm_head=int8",
    "int8:g32:2:4,embedding=none,lm_head=none",
    "int4:g32:2:4,embedding=none,lm_head=none",
)
"""Formats whose weights are rounded to nearest: the first table."""

METHODS = (
    "int4:g32 + gptq",
    "int4:g64 + gptq",
    "int4:g128 + gptq",
    "int4:g32,embedding=int8,lm_head=int8 + gptq",
    "int4:g128,embedding=int8,lm_head=int8 + gptq",
    "uint4:g32 + gptq",
    "uint4:g128 + gptq",
    "int3:g32 + gptq",
    "int3:g32,embedding=int8,lm_head=int8 + gptq",
    "uint3:g32 + gptq",
    "uint3:g32,embedding=int8,lm_head=int8 + gptq",
    "uint3:g64,embedding=int8,lm_head=int8 + gptq",
    "uint2:g32,embedding=int8,lm_head=int8 + gptq",
    "int4:g32 + awq",
    "int4:g128 + awq",
    "int4:g32,embedding=int8,lm_head=int8 + awq",
    "int4:g128,embedding=int8,lm_head=int8 + awq",
    "int3:g32,embedding=int8,lm_head=int8 + awq",
    "int4:g32,embedding=int8,lm_head=int8 + awq + gptq",
    "int4:g128,embedding=int8,lm_head=int8 + awq + gptq",
    "w8a8 + smoothquant",
    "w8a8,embedding=none,lm_head=none + smoothquant",
    "w8a8 + smoothquant + gptq",
    "int8:g32:2:4,embedding=none,lm_head=none + wanda",
    "int4:g32:2:4,embedding=none,lm_head=none + wanda",
    "int8:g32:2:4,embedding=none,lm_head=none + wanda + gptq",
    "int4:g32:2:4,embedding=none,lm_head=none + wanda + gptq",
    "w8a8,embedding=none,lm_head=none + outliers",
    "int4:g128,embedding=none,lm_head=none + outliers + gptq",
    "mixed:3.5",
    "mixed:4.5",
    "mixed:5.5",
    "mixed:4.5 + gptq",
    "bfloat16 + int8 KV cache",
    "int8:g32 + int8 KV cache",
    "int4:g32,embedding=int8,lm_head=int8 + int8 KV cache",
    "bfloat16 + int4 KV cache",
    "int8:g32 + int4 KV cache",
    "int4:g32,embedding=int8,lm_head=int8 + int4 KV cache",
    "int4:g32,embedding=int8,lm_head=int8 + gptq + int4 KV cache",
)
"""Calibrations, formats that a build chooses, and KV caches of integers: the second table."""

ROWS = FORMATS + METHODS
_KV_CACHE = " KV cache"


@dataclass(frozen=True)
class Options:
    """The options of `build` that make a row. quantize: None leaves the weights in the type of the activations."""

    dtype: str
    quantize: str | None
    calibrate: str
    kv_cache_dtype: str


def options_of(name: str) -> Options:
    """Returns the options of a row's name."""
    first, *rest = name.split(" + ")
    caches = [part.removesuffix(_KV_CACHE) for part in rest if part.endswith(_KV_CACHE)]
    methods = [part for part in rest if not part.endswith(_KV_CACHE)]
    return Options(
        dtype=REFERENCE if first == REFERENCE else BASE,
        quantize=None if first in (REFERENCE, BASE) else first,
        calibrate="+".join(methods) or "none",
        kv_cache_dtype="".join(caches) or "auto",
    )


def folder_of(name: str) -> str:
    """Returns the name of the folder that keeps a row's engine."""
    return re.sub(r"[^A-Za-z0-9.=]+", "-", name)
