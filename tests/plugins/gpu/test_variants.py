"""Engines store kernels by variant, a digest of the names and types of a kernel's parameters. It must not change."""

from __future__ import annotations

from tensorwright.plugins.gpu import budget

STORED = [
    ("rms_norm_kernel", "5d7909e5f522372f"),
    ("add_rms_norm_kernel", "1d1326ee5b8d750b"),
    ("gather_rows_kernel", "02f07492c759b194"),
    ("take_columns_kernel", "ef471afca644e88e"),
    ("copy_columns_kernel", "1db66e65a6388712"),
    ("rotary_table_kernel", "610d38cd26372f25"),
    ("gated_kernel", "77cb3cdc981d9e78"),
    ("elementwise_kernel", "dbf811716e275cc3"),
    ("columns_norm_kernel", "526fb4bdb744d9b0"),
    ("add_layer_norm_kernel", "1a40087778c6908c"),
    ("rotary_kv_write_kernel", "16e99f60163717fe"),
    ("rotary_kv_write_kernel", "c74bbfb921baade6"),
    ("int4_gemv_kernel", "f0574bc8bfdaebb3"),
    ("int4_gemv_kernel", "c6c233b78991d685"),
    ("int4_gemv_kernel", "5d430be53cf7b70a"),
    ("int4_gemm_kernel", "99af1ab6e636b6e3"),
    ("int4_gemm_kernel", "c0ee973c9a752960"),
    ("int4_gemm_kernel", "baf83d4293106ba1"),
    ("int4_reduce_kernel", "55138f6b8a2f33fe"),
    ("int4_gemm_kernel", "cad75e7e304d97dd"),
    ("int4_gemm_kernel", "2002e6bea1f0c9b4"),
    ("int4_dequantize_kernel", "7884af0448b151b8"),
    ("bytes_gemm_kernel", "5624a8d4d4db85ef"),
    ("bytes_gemm_kernel", "e4a5f68618b1def3"),
    ("bytes_gemm_kernel", "184d8f7ec25eec90"),
    ("bytes_gemm_kernel", "1f164b066c6f5dc1"),
    ("quantized_rows_kernel", "a29921ea34f4e128"),
    ("route_kernel", "74e654065aa137bf"),
    ("expert_order_kernel", "0dbfa8052fd9d36f"),
    ("experts_up_kernel", "4754e89865448f05"),
    ("experts_down_kernel", "1d8c82c6d5b36191"),
    ("experts_up_kernel", "63b0e39fe8cfacb9"),
    ("experts_down_kernel", "79e40d7515a88b2c"),
    ("experts_sum_kernel", "1d7e5e1c20cf12e5"),
    ("draw_maxima_kernel", "3e5fee595827f429"),
    ("draw_sums_kernel", "36b7f8bf518ddceb"),
    ("draw_gather_kernel", "20ce4bd392773c93"),
    ("draw_finish_kernel", "1d76c21e973cf462"),
    ("attention_prefill_kernel", "d821f40f6a50a1c0"),
    ("attention_decode_kernel", "16470e265d7119fd"),
    ("attention_prefill_kernel", "90e6b0bc174a4a1e"),
    ("attention_decode_kernel", "a6ef981c6b58d95e"),
    ("attention_prefill_kernel", "81b945dc555a9e71"),
    ("attention_decode_kernel", "35e69f7eef317453"),
    ("attention_combine_kernel", "7c8e95f15cc73ff8"),
    ("attention_list_kernel", "9a667384c734c187"),
    ("attention_listed_decode_kernel", "ff1a503a53c53b76"),
    ("attention_listed_decode_kernel", "3989d9cca464088d"),
    ("attention_listed_decode_kernel", "db78acf240cb104e"),
    ("attention_listed_combine_kernel", "21e2aefb2357b15e"),
]
"""The kernels of `budget.shown()` with the variants by which engines of versions before this one have them."""


def test_engines_of_before_find_their_kernels() -> None:
    assert [(spec.kernel, spec.variant) for _, spec in budget.shown()] == STORED
