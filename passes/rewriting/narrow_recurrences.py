"""How recurrences are narrowed: a rank has some of their channels, or heads, and their state; not a pass itself.

    carried_conv, carried_selective_scan, carried_rg_lru           channels
    carried_scan, carried_delta_rule, carried_linear_attention     heads, with the groups of B and C, or of q and k,
                                                                   that they read: as heads of q with those of K

Each rule narrows the rows that the operation reads and its weights, and notes the state that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorwright.ir import Node, Value
from tensorwright.passes.rewriting.cut import Range, Ranges, shifted
from tensorwright.passes.rewriting.narrow import Heads, HeadsRule, Narrowing, Rule, Undivided, maker
from tensorwright.passes.rewriting.state_sizes import state_layer

BATCH = 4
"""The operands between the rows and the weights: seq_starts, context_lens, state_slots and the states."""


def _carry(
    n: Narrowing,
    node: Node,
    ranges: Ranges,
    rows: Sequence[Value],
    weights: Sequence[Value | None],
    attrs: dict[str, Any],
) -> Value:
    """Adds the recurrence of some channels. Raises Undivided if another part of its state is wanted already."""
    layer = node.attrs["state"]
    if n.parts.cuts.setdefault(layer, ranges) != ranges:
        raise Undivided(f"{node.op} is asked for other channels than those whose state the rank has")
    batch = node.inputs[len(rows) : len(rows) + BATCH]
    y = n.emit(node, [*rows, *batch, *weights], {**node.attrs, **attrs})[0]
    w = weights[0]
    assert w is not None
    n.parts.states[layer] = state_layer(node.op, rows, w, y.producer.attrs)
    return y


def _require_rows(node: Node, value: Value) -> None:
    if value is not node.outputs[0]:
        raise Undivided(f"the states of {node.op} are read by another operation")


def _conv(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    _require_rows(node, value)
    x, w, bias = node.operand(0), node.operand(1 + BATCH), node.optional(2 + BATCH)
    weights = [n.stored(w, 1, ranges), None if bias is None else n.stored(bias, 0, ranges)]
    return _carry(n, node, ranges, [n.narrow(x, ranges)], weights, {})


def _selective_scan(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Narrows x and dt. All channels read the same b and c."""
    _require_rows(node, value)
    x, dt, b, c = (node.operand(i) for i in range(4))
    rows = [n.narrow(x, ranges), n.narrow(dt, ranges), b, c]
    return _carry(n, node, ranges, rows, [n.stored(node.operand(4 + BATCH), 1, ranges)], {})


def _rg_lru(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    _require_rows(node, value)
    rows = [n.narrow(node.operand(i), ranges) for i in range(3)]
    return _carry(n, node, ranges, rows, [n.stored(node.operand(3 + BATCH), 1, ranges)], {})


def _own_heads(n: Narrowing, node: Node, value: Value, ranges: Ranges, groups: int) -> tuple[Range, Range]:
    """Returns the heads that the columns are, and the groups that these read. Raises Undivided for other heads."""
    _require_rows(node, value)
    own, own_groups = n.cut_of(node.attrs["heads"], groups)
    if n.heads_in(value, ranges, node.attrs["heads"]) != own:
        raise Undivided(f"{maker(value)} is asked for other heads than those of its rank")
    return own, own_groups


def _scaled(part: Range, by: int) -> Range:
    return part[0] * by, part[1] * by


def _scan(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Narrows a row of x, b and c, whose heads of x share the groups of b and c."""
    row, dt, w = node.operand(0), node.operand(1), node.operand(2 + BATCH)
    groups, states, columns = node.attrs["groups"], node.attrs["states"], int(value.shape[1])
    own, own_groups = _own_heads(n, node, value, ranges, groups)
    part = _scaled(own_groups, states)
    wanted = (*ranges, *shifted((part,), columns), *shifted((part,), columns + groups * states))
    attrs = {"heads": own[1] - own[0], "groups": own_groups[1] - own_groups[0]}
    rows = [n.narrow(row, wanted), n.narrow(dt, (own,))]
    return _carry(n, node, ranges, rows, [n.stored(w, 1, (own,))], attrs)


def _delta_rule(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Narrows a row of q, k and v, whose heads of v share the heads of q and k."""
    row, dt, beta, w = node.operand(0), node.operand(1), node.operand(2), node.operand(3 + BATCH)
    heads, key_heads = node.attrs["heads"], node.attrs["key_heads"]
    own, own_keys = _own_heads(n, node, value, ranges, key_heads)
    size = (int(row.shape[1]) - int(value.shape[1])) // (2 * key_heads)
    part = _scaled(own_keys, size)
    wanted = (part, *shifted((part,), key_heads * size), *shifted(ranges, 2 * key_heads * size))
    attrs = {"heads": own[1] - own[0], "key_heads": own_keys[1] - own_keys[0]}
    rows = [
        n.narrow(row, wanted), n.narrow(dt, (_scaled(own, int(dt.shape[1]) // heads),)), n.narrow(beta, (own,))
    ]  # fmt: skip
    return _carry(n, node, ranges, rows, [n.stored(w, 0, (own,))], attrs)


def _linear_attention(n: Narrowing, node: Node, value: Value, ranges: Ranges) -> Value:
    """Narrows a row of v, k and q, which have the same heads."""
    row, w = node.operand(0), node.operand(1 + BATCH)
    heads, states, columns = node.attrs["heads"], node.attrs["states"], int(value.shape[1])
    own, _ = _own_heads(n, node, value, ranges, heads)
    part = _scaled(own, states)
    wanted = (*ranges, *shifted((part,), columns), *shifted((part,), columns + heads * states))
    rows = [n.narrow(row, wanted)]
    return _carry(n, node, ranges, rows, [n.stored(w, 0, (own,))], {"heads": own[1] - own[0]})


def _heads(groups: str) -> HeadsRule:
    """Returns the rule of a recurrence whose attribute `groups` says how many groups its heads read."""

    def heads_of(n: Narrowing, node: Node, value: Value) -> Heads:
        heads = node.attrs["heads"]
        return Heads(heads, node.attrs[groups], int(value.shape[1]) // heads)

    return heads_of


def _heads_of_gates(n: Narrowing, node: Node, value: Value) -> Heads | None:
    """Returns the heads that the gates of an rg_lru are products of."""
    return n.heads_of(node.operand(1)) or n.heads_of(node.operand(2))


RULES: dict[str, Rule] = {
    "carried_conv": _conv,
    "carried_selective_scan": _selective_scan,
    "carried_rg_lru": _rg_lru,
    "carried_scan": _scan,
    "carried_delta_rule": _delta_rule,
    "carried_linear_attention": _linear_attention,
}
HEADS: dict[str, HeadsRule] = {
    "carried_scan": _heads("groups"),
    "carried_delta_rule": _heads("key_heads"),
    "carried_linear_attention": _heads("heads"),
    "carried_rg_lru": _heads_of_gates,
}
