"""Lowered graphs with one thing wrong of plain decoders that spell a usual feature in their own way: norms behind the
rotation, positions with an offset, rotary embeddings read from a table.

Like family_mutations.py: no shape changes, and each fails if the graph has nothing to break.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.weights import Concat, Repeat, Slice, WeightExpr


def drop_query_gain(graph: Graph) -> None:
    """The weight of q's norm behind the rotation is not multiplied in the last layer."""
    _gains(graph)[-2].attrs["program"] = "x0 w w div mul"


def drop_key_gain(graph: Graph) -> None:
    """The weight of k's norm behind the rotation is not multiplied in the last layer."""
    _gains(graph)[-1].attrs["program"] = "x0 w w div mul"


def weigh_before_rotation(graph: Graph) -> None:
    """The weights of the norms of the last layer are multiplied before the rotation, not behind it."""
    norms, gains = _matching(graph, lambda n: n.op == "rms_norm_columns")[-2:], _gains(graph)[-2:]
    for norm, gain in zip(norms, gains, strict=True):
        whole = gain.inputs[4].node
        width = norm.inputs[1].shape[0]
        first = whole.attrs["expr"].parts[0]
        norm.inputs[1] = graph.add(
            "weight", (), {**whole.attrs, "expr": first}, [("float32", (width,))], before=norm
        ).output
        gain.attrs["program"] = "x0 w w div mul"


def norm_no_keys(graph: Graph) -> None:
    """The keys of the last layer are not normalised: their norm is of q's columns once more."""
    norms = _matching(graph, lambda n: n.op == "rms_norm_columns")[-2:]
    norms[1].attrs.update(start=norms[0].attrs["start"], heads=norms[0].attrs["heads"])


def norm_no_values(graph: Graph) -> None:
    """The values of the last layer that has some are not normalised: their norm is of k's columns once more."""
    norms = _matching(graph, lambda n: n.op == "rms_norm_columns")
    values = [norm for norm in norms if norm.inputs[1].node.op == "constant"][-1]
    keys = [norm for norm in norms if 0 < norm.attrs["start"] < values.attrs["start"]][-1]
    values.attrs.update(start=keys.attrs["start"], heads=keys.attrs["heads"])


def scale_no_layer(graph: Graph) -> None:
    """The first layer is not multiplied by its number. That of the last one goes into a norm, which takes it off."""

    def is_scale(node: Node) -> bool:
        vector = node.inputs[4] if node.op == "elementwise" else None
        return vector is not None and isinstance(vector.node.attrs.get("expr"), Repeat)

    _matching(graph, is_scale)[0].attrs["program"] += " w div"


def swap_layer_inputs(graph: Graph) -> None:
    """Two layers take each other's inputs, as far as these come of what the token is."""

    def is_part(node: Node) -> bool:
        return node.op == "embedding" and isinstance(node.inputs[0].node.attrs["expr"], Slice)

    first, second = _matching(graph, is_part)[-2:]
    tables = [node.inputs[0].node.attrs["expr"] for node in (first, second)]
    for node, other in ((first, tables[1]), (second, tables[0])):
        _reread(graph, node, 0, lambda expr, other=other: other)


def flatten_reading_queries(graph: Graph) -> None:
    """The norm of the queries of the last layer, which reads the keys of another, loses its weight."""
    rows = _matching(graph, lambda n: n.op == "rms_norm_columns" and n.attrs["start"] == 0)
    shape = rows[-1].inputs[1].shape
    rows[-1].inputs[1] = graph.constant(np.ones(shape, np.float32), "float32", shape, before=rows[-1])


def bend_upwards_only(graph: Graph) -> None:
    """xIELU of the last layer takes its curve for positive numbers everywhere."""
    node = _matching(graph, lambda n: n.op == "elementwise" and "0.0 maximum 1.0 minimum" in n.attrs["program"])[-1]
    node.attrs["program"] = node.attrs["program"].replace("0.0 maximum", "1.0 maximum")


def forget_softplus(graph: Graph) -> None:
    """The numbers of the last xIELU are taken as they are stored."""
    node = _matching(graph, lambda n: n.op == "elementwise" and "w softplus" in n.attrs["program"])[-1]
    node.attrs["program"] = node.attrs["program"].replace("w softplus", "w")


def turn_backwards(graph: Graph) -> None:
    """q and k turn in the opposite direction."""
    table = _matching(graph, lambda n: n.op == "rotary_table")[0]
    value = np.array(table.inputs[1].constant)
    table.inputs[1] = graph.constant(-value, "float32", value.shape, before=table)


def forget_offset(graph: Graph) -> None:
    """Positions read the table from its first row, not from the one behind the offset."""
    node = _matching(graph, lambda n: n.op == "embedding" and n.attrs["ids"] == 1)[0]

    def from_the_start(expr: WeightExpr) -> WeightExpr:
        return expr.part.slice(0, 0, expr.end - expr.start)

    _reread(graph, node, 0, from_the_start)


def read_next_positions(graph: Graph) -> None:
    """The table of positions that the model computes begins one row too late."""
    node = _matching(graph, lambda n: n.op == "embedding" and n.attrs["ids"] == 1)[0]
    rows = np.roll(np.asarray(node.operand(0).constant), -1, axis=0)
    node.inputs[0] = graph.constant(rows, node.operand(0).dtype, rows.shape, before=node)


def forget_growth(graph: Graph) -> None:
    """Queries do not grow with the position."""
    for node in _matching(graph, lambda n: n.op == "embedding" and n.inputs[0].constant is not None):
        table = node.inputs[0]
        ones = graph.constant(np.ones(table.shape, np.float32), "float32", table.shape, before=node)
        node.inputs[0] = ones


def keep_key_norm_pairs(graph: Graph) -> None:
    """The weight of k's norm in the last layer keeps its order, though the columns that it belongs to have moved."""
    node = _matching(graph, lambda n: n.op == "layer_norm" and n.attrs["width"] < n.outputs[0].shape[-1])[-1]
    shape = node.inputs[1].shape

    def as_stored(expr: WeightExpr) -> WeightExpr:
        plain = next(iter(_refs(expr)))
        return plain.reshape(shape)

    _reread(graph, node, 1, as_stored)


def drop_head_bias(graph: Graph) -> None:
    """The product that gives the logits loses its bias."""
    node = _matching(graph, lambda n: n.op == "matmul")[-1]
    assert node.inputs[2] is not None
    node.inputs[2] = None


def swap_key_and_value(graph: Graph) -> None:
    """The rows of k and v of the last layer change places."""
    node = _matching(graph, lambda n: n.op == "rotary_kv_write")[-1].inputs[0].node

    def swapped(expr: WeightExpr) -> WeightExpr:
        assert isinstance(expr, Concat)
        q, k, v = expr.parts
        return Concat((q, v, k), expr.dim)

    _reread(graph, node, 1, swapped)


def _gains(graph: Graph) -> list[Node]:
    """The products of q behind the rotation with the norms' weights: q's, then k's, of every layer."""
    return _matching(graph, lambda n: n.op == "elementwise" and n.attrs["program"] == "x0 w mul")


def _refs(expr: WeightExpr) -> list[WeightExpr]:
    inner = getattr(expr, "parts", None) or ((expr.part,) if hasattr(expr, "part") else ())
    return [ref for each in inner for ref in _refs(each)] if inner else [expr]


def _reread(graph: Graph, node: Node, at: int, change: Callable[[WeightExpr], WeightExpr]) -> Value:
    old = node.inputs[at]
    attrs = {**old.node.attrs, "expr": change(old.node.attrs["expr"])}
    assert attrs["expr"] != old.node.attrs["expr"]
    node.inputs[at] = graph.add("weight", (), attrs, [(old.dtype, old.shape)], before=node).output
    return node.inputs[at]


def _matching(graph: Graph, wanted: Callable[[Node], bool]) -> list[Node]:
    found = [n for n in graph.nodes if wanted(n)]
    assert found, "the graph has nothing that this mutation could break"
    return found
