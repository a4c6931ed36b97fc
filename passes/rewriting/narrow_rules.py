"""How the operations of a cached graph are narrowed to the columns of one rank; not a pass itself.

Each rule takes an operation apart from what the others do (narrow.py): it says which columns of its operands the wanted
columns of its result need. Norms and recurrences have files of their own.
"""

from __future__ import annotations

from dataclasses import replace

from tensorwright.ir import Node, Value
from tensorwright.ir.row_purity import is_per_row
from tensorwright.passes.rewriting import narrow_norms, narrow_recurrences
from tensorwright.passes.rewriting.cut import Ranges, shifted, width, within
from tensorwright.passes.rewriting.narrow import Heads, Narrowing, Row, Rules, Undivided


def _linear(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    x, w, bias = node.operand(0), node.operand(1), node.optional(2)
    if not w.is_stored:
        raise Undivided("a product of two computed values needs all columns")
    n.products.append(node)
    inputs: list[Value | None] = [x, n.stored(w, 0, ranges)]
    if bias is not None:
        inputs.append(n.stored(bias, 0, ranges))
    return n.emit(node, inputs, dict(node.attrs))[0]


def _elementwise(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    columns = int(value.shape[1])
    inputs: list[Value | None] = []
    for operand in node.inputs:
        if operand is None:
            inputs.append(None)
        elif is_per_row(operand):
            one = operand.rank == 2 and operand.shape[1] == 1
            inputs.append(operand if one else n.narrow(operand, ranges))
        else:
            inputs.append(n.vector(operand, columns, ranges))
    return n.emit(node, inputs, dict(node.attrs))[0]


def _gate(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    both = (*ranges, *shifted(ranges, int(value.shape[1])))
    return n.emit(node, [n.narrow(node.operand(0), both)], dict(node.attrs))[0]


def _concat(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    if node.attrs["dim"] not in (1, -1):
        raise Undivided("concat joins rows")
    parts, begin = [], 0
    for operand in node.inputs:
        size = 0 if operand is None else int(operand.shape[1])
        inside = within(ranges, begin, begin + size)
        begin += size
        if inside and operand is not None:
            parts.append(n.narrow(operand, inside))
    return parts[0] if len(parts) == 1 else n.emit(node, parts, dict(node.attrs))[0]


def _slice(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    if node.attrs["dim"] not in (1, -1) or node.attrs["step"] != 1 or not isinstance(node.attrs["start"], int):
        raise Undivided("slice takes other than neighbouring columns")
    return n.narrow(node.operand(0), shifted(ranges, node.attrs["start"]))


def _head_products(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    x, w = node.operand(0), node.operand(1)
    heads = int(w.shape[0])
    begin, end = n.heads_in(value, ranges, heads)
    size = int(x.shape[1]) // heads
    inputs: list[Value | None] = [n.narrow(x, ((begin * size, end * size),)), n.stored(w, 0, ((begin, end),))]
    return n.emit(node, inputs, dict(node.attrs))[0]


def _attention(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    heads = node.attrs["heads"]
    own, own_kv = n.cut_of(heads, n.kv_heads[node.attrs["layer"]])
    if n.heads_in(value, ranges, heads) != own:
        raise Undivided("attention is asked for other heads than those of its rank")
    q, size = node.operand(0), node.attrs["head_dim"]
    vectors = [None if v is None else n.stored(v, 0, (own,)) for v in node.inputs[5:]]
    cache = _write(n, node.operand(1).producer).outputs[1]
    inputs = [n.narrow(q, ((own[0] * size, own[1] * size),)), cache, *node.inputs[2:5], *vectors]
    attrs = {**node.attrs, "heads": own[1] - own[0], "kv_heads": own_kv[1] - own_kv[0]}
    return n.emit(node, inputs, attrs)[0]


def _written(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Returns q as the write of K and V leaves it."""
    new = _write(n, node)
    if new.outputs[0].shape[1] != width(ranges):
        raise Undivided("a write of K and V is asked for other heads than those of its rank")
    return new.outputs[0]


def _write(n: Narrowing, node: Node) -> Node:
    """Returns the write of a layer's K and V, for the heads of this rank."""
    if id(node) not in n.parts.writes:
        n.parts.writes[id(node)] = (_write_latent if node.op == "latent_kv_write" else _write_heads)(n, node)
    return n.parts.writes[id(node)]


def _write_heads(n: Narrowing, node: Node) -> Node:
    heads, kv_heads, size = (node.attrs[name] for name in ("heads", "kv_heads", "head_dim"))
    layer = node.attrs["layer"]
    own, own_kv = n.cut_of(heads, n.kv_heads[layer])
    attrs = {**node.attrs, "heads": own[1] - own[0]}
    ranges: Ranges = ((own[0] * size, own[1] * size),)
    cache = node.operand(3)
    copied: Ranges = ()
    if kv_heads:
        attrs["kv_heads"] = n.parts.kv_heads[layer] = own_kv[1] - own_kv[0]
        keys, values = heads * size, (heads + kv_heads) * size
        of_kv = tuple((start + own_kv[0] * size, start + own_kv[1] * size) for start in (keys, values))
        ranges += of_kv
        if n.rank > 0 and n.cut_of(heads, kv_heads, n.rank - 1)[1] == own_kv:
            copied = of_kv
    else:
        cache = _write(n, cache.producer).outputs[1]
    row = node.operand(0)
    with n.narrowing_row(Row(row, size, copied)):
        part = n.narrow(row, ranges)
    return n.emit(node, [part, *node.inputs[1:3], cache], attrs)[0].producer


def _write_latent(n: Narrowing, node: Node) -> Node:
    heads = node.attrs["heads"]
    (begin, end), _ = n.cut_of(heads, 1)
    q_latent, q = (
        n.narrow(v, ((begin * int(v.shape[1]) // heads, end * int(v.shape[1]) // heads),))
        for v in (node.operand(0), node.operand(1))
    )
    return n.emit(node, [q_latent, q, *node.inputs[2:]], {**node.attrs, "heads": end - begin})[0].producer


# -- which columns are heads ------------------------------------------------------------------------------------------


def _heads_of_attention(n: Narrowing, node: Node, value: Value) -> Heads:
    heads = node.attrs["heads"]
    return Heads(heads, n.kv_heads[node.attrs["layer"]], int(value.shape[1]) // heads)


def _heads_of_products(n: Narrowing, node: Node, value: Value) -> Heads:
    """Returns the heads of what is multiplied; where it has none, each matrix makes a head of its own."""
    found = n.heads_of(node.operand(0))
    heads = int(node.operand(1).shape[0])
    size = int(value.shape[1])
    return Heads(heads, heads, size // heads) if found is None else replace(found, width=size // found.heads)


def _heads_of_elementwise(n: Narrowing, node: Node, value: Value) -> Heads | None:
    full = [v for v in node.inputs if v is not None and is_per_row(v) and v.shape == value.shape]
    return next((found for v in full if (found := n.heads_of(v)) is not None), None)


RULES = Rules(
    of_ops={
        "linear": _linear,
        "concat": _concat,
        "slice": _slice,
        "head_products": _head_products,
        "paged_attention": _attention,
        "rotary_kv_write": _written,
        "latent_kv_write": _written,
        **narrow_norms.RULES,
        **narrow_recurrences.RULES,
    },
    of_kinds={"elementwise": _elementwise, "gate": _gate},
    heads={
        "paged_attention": _heads_of_attention,
        "head product": _heads_of_products,
        "elementwise": _heads_of_elementwise,
        **narrow_norms.HEADS,
        **narrow_recurrences.HEADS,
    },
)
