"""Imports the plugins, which puts their records into the IR's table of operations (ir/ops.py).

A plugin's module holds OP, INSTRUCTION or both. A new operation needs its folder and its line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from tensorwright.ir.ops import register_plugins
from tensorwright.ir.records import Op
from tensorwright.plugins.paged_attention.cache import PagedCache

MODULES = (
    "add.op",
    "causal_conv.carried",
    "causal_conv.op",
    "collectives.all_gather",
    "collectives.all_reduce",
    "collectives.receive",
    "collectives.send",
    "concat.op",
    "delta_rule.carried",
    "delta_rule.op",
    "draft_features.op",
    "draw_tokens.op",
    "elementwise.op",
    "embedding.op",
    "embedding.quantized",
    "experts.down",
    "experts.op",
    "experts.quantized",
    "experts.quantized_down",
    "experts.quantized_up",
    "experts.up",
    "experts.weight_only",
    "gather_rows.op",
    "head_products.op",
    "head_products.quantized",
    "head_products.weight_only",
    "latent_attention.latent_kv_write",
    "latent_attention.op",
    "layer_norm.add_layer_norm",
    "layer_norm.instruction",
    "layer_norm.layer_norm_columns",
    "layer_norm.op",
    "linear_attention.carried",
    "linear_attention.op",
    "matmul.op",
    "paged_attention.attention",
    "paged_attention.op",
    "quantized_matmul.linear",
    "quantized_matmul.op",
    "quantized_matmul.weight_only",
    "rg_lru.carried",
    "rg_lru.op",
    "rms_norm.add_rms_norm",
    "rms_norm.instruction",
    "rms_norm.op",
    "rms_norm.rms_norm_columns",
    "rotary.op",
    "rotary.rotary_kv_write",
    "rotary.rotary_table",
    "route.by_score",
    "route.op",
    "selective_scan.carried",
    "selective_scan.op",
    "shared_norm.rms_norm_by_sums",
    "shared_norm.square_sums",
    "split_columns.op",
    "state_space_scan.carried",
    "state_space_scan.op",
    "swiglu.op",
    "take_columns.op",
    "weight_only_matmul.op",
)
"""The modules with records, by their names below tensorwright.plugins."""


def read_records(modules: tuple[str, ...] = MODULES) -> Iterator[Op]:
    """Yields the records of some modules. Raises ValueError for a module without one."""
    for name in modules:
        module = import_module(f"tensorwright.plugins.{name}")
        records = [getattr(module, kind) for kind in ("OP", "INSTRUCTION") if hasattr(module, kind)]
        if not records:
            raise ValueError(f"plugins.{name} must define OP or INSTRUCTION")
        yield from records


register_plugins(read_records(), PagedCache.empty)
