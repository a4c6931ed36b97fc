"""What each instruction of stage "lowered" computes: the plugins' references behind the instructions' own attributes.

Operands come as numpy arrays, bfloat16 ones as the float32 values they are; results are rounded to the type that the
graph gives them.
"""

from __future__ import annotations

from typing import Any

from tensorwright.ir.graph import Graph, Node


def lowered_op(graph: Graph, node: Node, x: list[Any]) -> list[Any]:
    """The results of one instruction. "kv" results are PagedCache objects."""
    from tensorwright.plugins.registry import PLUGINS  # plugins import this package

    op, attrs = node.op, node.attrs
    if op == "rms_norm":
        # One instruction with an optional residual stands for two ops; so does layer_norm's.
        op, x = ("rms_norm", x[:2]) if x[2] is None else ("add_rms_norm", [x[0], x[2], x[1]])
    elif op == "layer_norm":
        op, x = ("layer_norm_columns", x[:3]) if x[3] is None else ("add_layer_norm", [x[0], x[3], x[1], x[2]])
    elif "kv_layer" in attrs:
        # An instruction names its layer only; what that layer is stands in the graph's facts.
        about = graph.facts["kv_layers"][attrs["kv_layer"]]
        attrs = {**attrs, "layer": attrs["kv_layer"]} | {k: about[k] for k in ("kv_heads", "head_dim", "window")}
    results = PLUGINS[op].reference(x, attrs, node.outputs[0].dtype)
    return results[: len(node.outputs)]
