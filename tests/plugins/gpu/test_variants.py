"""Engines store kernels by variant, a digest of the names and types of a kernel's parameters. It must not change."""

from __future__ import annotations

from tensorwright.plugins.gpu import budget

STORED = [
    ("rms_norm_kernel", "5d7909e5f522372f"), ("add_rms_norm_kernel", "1d1326ee5b8d750b"),
    ("rotary_kv_write_kernel", "16e99f60163717fe"), ("rotary_kv_write_kernel", "c74bbfb921baade6"),
    ("int4_gemv_kernel", "f0574bc8bfdaebb3"), ("int4_gemv_kernel", "c6c233b78991d685"),
    ("int4_gemv_kernel", "5d430be53cf7b70a"), ("int4_gemm_kernel", "99af1ab6e636b6e3"),
    ("int4_gemm_kernel", "c0ee973c9a752960"), ("int4_gemm_kernel", "baf83d4293106ba1"),
    ("int4_reduce_kernel", "55138f6b8a2f33fe"),
    ("attention_prefill_kernel", "d821f40f6a50a1c0"), ("attention_decode_kernel", "16470e265d7119fd"),
    ("attention_prefill_kernel", "90e6b0bc174a4a1e"), ("attention_decode_kernel", "a6ef981c6b58d95e"),
    ("attention_prefill_kernel", "81b945dc555a9e71"), ("attention_decode_kernel", "35e69f7eef317453"),
    ("attention_combine_kernel", "7c8e95f15cc73ff8"),
]  # fmt: skip
"""The kernels of `budget.shown()` with the variants by which engines of versions before this one have them."""


def test_engines_of_before_find_their_kernels() -> None:
    assert [(spec.kernel, spec.variant) for _, spec in budget.shown()] == STORED
