"""Converts recurrences for insert_kv_cache: each gets a state per sequence, which lasts from step to step; not a pass.

    causal_conv(x, w, bias?)                             ->  carried_conv(x, ..., state.l, w^T, bias?)
    state_space_scan(x, dt, b, c, -exp(a_log), d, bias)  ->  carried_scan(row, dt, ..., state.l, [a_log, d, bias])
    delta_rule(q, k, v, g, sigmoid(beta) * scale)        ->  carried_delta_rule(row, dt, beta, ..., state.l, a_log)
        with g = -exp(a_log) * softplus(dt)

x, b and c, and q, k and v, are consecutive slices of one row.  ... are seq_starts, context_lens and state_slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.ir import Node, Shape, Value
from tensorwright.ir.facts import StateLayer
from tensorwright.passes.rewriting.matcher import Match, match_value, pattern

SCAN = pattern("""
    x   = slice(row, dim=-1, start=0, end=x_end, step=1)
    b   = slice(row, dim=-1, start=x_end, end=b_end, step=1)
    c   = slice(row, dim=-1, start=b_end, end=c_end, step=1)
    a   = neg(exp(a_log))
    out = state_space_scan(x, dt, b, c, a, d, dt_bias)
""")  # fmt: skip

DELTA_RULE = pattern(
    """
    q     = slice(row, dim=-1, start=0, end=q_end, step=1)
    k     = slice(row, dim=-1, start=q_end, end=k_end, step=1)
    v     = slice(row, dim=-1, start=k_end, end=v_end, step=1)
    decay = mul(neg(exp(a_log)), softplus(dt))
    rate  = mul?(sigmoid(beta), scale)
    out   = delta_rule(q, k, v, decay, rate)
    """,
    commute=True,
)

Emit = Callable[..., list[Value]]
"""Adds a node (op, operands, attributes, types or None, name) and returns its results."""


class States:
    """The states of a graph's recurrences, in order. `emit` adds a node."""

    def __init__(self, emit: Emit, metadata: dict[str, Value]):
        self.emit = emit
        self.metadata = metadata
        self.layers: list[StateLayer] = []

    def carry(self, op: str, rows: list[Value], weights: list[Value | None], numbers: int, attrs: Any) -> Value:
        """Adds the op with a state of so many float32 numbers. Returns its first result."""
        layer = len(self.layers)
        self.layers.append(StateLayer((4 * numbers + 63) // 64 * 64))
        if "state_slots" not in self.metadata:
            (self.metadata["state_slots"],) = self.emit("input", (), {}, [("int32", ("seqs",))], "state_slots")
        (state,) = self.emit("input", (), {}, [("state", ())], f"state.{layer}")
        batch = [self.metadata[name] for name in ("seq_starts", "context_lens", "state_slots")]
        return self.emit(op, [*rows, *batch, state, *weights], {"state": layer, **attrs})[0]

    def carry_conv(self, node: Node, x: Value) -> Value:
        w = node.operand(1)
        expr, (channels, width) = w.producer.attrs["expr"], w.shape
        (turned,) = self.emit("weight", (), {"expr": expr.transpose(0, 1)}, [(w.dtype, (width, channels))])
        numbers = max(1, int(width) - 1) * int(channels)
        return self.carry("carried_conv", [x], [turned, node.optional(2)], numbers, dict(node.attrs))

    def carry_scan(self, m: Match, row: Value, dt: Value) -> Value:
        heads, groups = m.root.attrs["heads"], m.root.attrs["groups"]
        first, *rest = (v.producer.attrs["expr"] for v in (m.a_log, m.d, m.dt_bias))
        kind: tuple[str, Shape] = (m.d.dtype, (3, heads))
        (w,) = self.emit("weight", (), {"expr": first.stack(rest)}, [kind])
        states = (m.c_end - m.b_end) // groups
        numbers = int(m.x_end) * states
        return self.carry("carried_scan", [row, dt], [w], numbers, {**m.root.attrs, "states": states})

    def carry_delta_rule(self, m: Match, row: Value, dt: Value, beta: Value) -> Value:
        heads = m.root.attrs["heads"]
        width, keys = (m.v_end - m.k_end) // heads, m.q_end // m.root.attrs["key_heads"]
        attrs = {**m.root.attrs, "width": width, "beta_scale": 1.0 if m.scale is None else m.scalar(m.scale)}
        return self.carry("carried_delta_rule", [row, dt, beta], [m.a_log], heads * keys * width, attrs)


def check_delta_rule(m: Match) -> None:
    m.require(m.v_end == m.row.shape[-1], "q, k and v are not all of the row", m.row)
    m.require(m.a_log.node.op == "weight", "not a weight of the checkpoint", m.a_log)


def check_scan(m: Match) -> None:
    m.require(m.c_end == m.row.shape[-1], "x, b and c are not all of the row", m.row)
    for value in (m.a_log, m.d, m.dt_bias):
        m.require(value.node.op == "weight", "not a weight of the checkpoint", value)


FORMS = {"state_space_scan": (SCAN, check_scan), "delta_rule": (DELTA_RULE, check_delta_rule)}
"""The pattern of each recurrence that reads parts of a row, and its check."""


def read_recurrence(node: Node) -> Match | None:
    """Returns the match of a recurrence of FORMS, or None if it is written in another way."""
    return match_value(node.output, *FORMS[node.op])
