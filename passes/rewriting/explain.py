"""Error messages of passes: the node, where it is in the model, and which pattern nearly claimed it; not a pass."""

from __future__ import annotations

from tensorwright.ir import Graph, Node
from tensorwright.ir.text import underline
from tensorwright.passes import (
    fuse_add_layer_norm,
    fuse_add_rms_norm,
    fuse_gate_up,
    fuse_head_norms,
    fuse_qkv,
    fuse_swiglu,
    permute_rotary_rows,
    recognise_attention,
    recognise_gelu,
    recognise_interleaved_rotary,
    recognise_layer_norm,
    recognise_rms_norm,
    recognise_rotary,
    rewrite_gqa,
    split_interleaved_linears,
)
from tensorwright.passes.rewriting.matcher import find_miss

RECOGNISERS = (
    recognise_rms_norm,
    recognise_layer_norm,
    recognise_gelu,
    recognise_rotary,
    recognise_interleaved_rotary,
    split_interleaved_linears,
    recognise_attention,
    rewrite_gqa,
    permute_rotary_rows,
    fuse_qkv,
    fuse_gate_up,
    fuse_swiglu,
    fuse_head_norms,
    fuse_add_rms_norm,
    fuse_add_layer_norm,
)
"""Every pass that has a PATTERN and a check and runs before a message of this file can be needed."""
RULES = {module.__name__.rsplit(".", 1)[-1]: (module.PATTERN, module.check) for module in RECOGNISERS}


def located(graph: Graph, node: Node, message: str) -> str:
    """`message`, the closest partial match that reached `node`, and the node underlined among its neighbours."""
    misses = [(find_miss(graph, *rule, through=node), name) for name, rule in RULES.items()]
    reached = [(miss.depth, name, miss) for miss, name in misses if miss is not None]
    lines = [message]
    if reached:
        _, name, miss = max(reached, key=lambda item: item[0])
        lines.append(f"closest partial match: {name}: {miss}")
    return "\n".join([*lines, underline(graph, node)])
