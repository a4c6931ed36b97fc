"""Converts recurrences for insert_kv_cache: each gets a state per sequence, which lasts from step to step; not a pass.

    causal_conv(x, w, bias?)                             ->  carried_conv(x, ..., state.l, w^T, bias?)
    state_space_scan(x, dt, b, c, -exp(a_log), d, bias)  ->  carried_scan(row, dt, ..., state.l, [a_log, d, bias])
    selective_scan(x, dt, b, c, -exp(a_log), d, bias)    ->  carried_selective_scan(x, dt, b, c, ..., state.l,
                                                                                   [a_log^T, d, bias])
    delta_rule(q, k, v, g, sigmoid(beta) * scale)        ->  carried_delta_rule(row, dt, beta, ..., state.l, a_log)
        with g = -exp(a_log) * softplus(dt), in which dt has one number for each head, or for each element of its key
    linear_attention(v, k, q, slopes)                    ->  carried_linear_attention(row, ..., state.l, slopes)
    rg_lru(share * x * sigmoid(input + bias), a, first)  ->  carried_rg_lru(x, input, decay, ..., state.l,
                                                                            [p, bias, decay_bias])
        with log(a) = -8 sigmoid(decay + decay_bias) softplus(p), share = 1 at the first position, else sqrt(1 - a^2)

x, b and c of state_space_scan, q, k and v of delta_rule, and v, k and q of linear_attention are consecutive slices of
one row.  ... are seq_starts, context_lens and state_slots.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tensorwright.ir import Node, Shape, Value
from tensorwright.ir.facts import StateLayer
from tensorwright.passes.rewriting.matcher import Match, match_value, pattern
from tensorwright.passes.rewriting.state_sizes import state_layer

SCAN = pattern("""
    x   = slice(row, dim=-1, start=0, end=x_end, step=1)
    b   = slice(row, dim=-1, start=x_end, end=b_end, step=1)
    c   = slice(row, dim=-1, start=b_end, end=c_end, step=1)
    a   = neg(exp(a_log))
    out = state_space_scan(x, dt, b, c, a, d, dt_bias)
""")  # fmt: skip

SELECTIVE_SCAN = pattern("""
    a   = neg(exp(a_log))
    out = selective_scan(x, dt, b, c, a, d, dt_bias)
""")  # fmt: skip

DELTA_RULE = pattern(
    """
    q     = slice(row, dim=-1, start=0, end=q_end, step=1)
    k     = slice(row, dim=-1, start=q_end, end=k_end, step=1)
    v     = slice(row, dim=-1, start=k_end, end=v_end, step=1)
    steps = softplus(view?(dt))
    decay = mul(neg(exp(a_log)), steps)
    rate  = mul?(sigmoid(beta), scale)
    out   = delta_rule(q, k, v, view?(decay), rate)
    """,
    commute=True,
)

RG_LRU = pattern(
    """
    first   = eq(view(positions), 0)
    log_a   = mul(mul(sigmoid(add(decay, decay_bias)), -8), softplus(p))
    share   = add(first, mul(logical_not(first), sqrt(sub(1, exp(mul(log_a, 2))))))
    out     = rg_lru(mul(mul(x, sigmoid(add(gate, gate_bias))), share), exp(log_a), first)
    """,
    commute=True,
)

LINEAR_ATTENTION = pattern("""
    v   = slice(row, dim=-1, start=0, end=v_end, step=1)
    k   = slice(row, dim=-1, start=v_end, end=k_end, step=1)
    q   = slice(row, dim=-1, start=k_end, end=q_end, step=1)
    out = linear_attention(v, k, q, slopes)
""")  # fmt: skip

Emit = Callable[..., list[Value]]
"""Adds a node (op, operands, attributes, types or None, name) and returns its results."""


class States:
    """The states of a graph's recurrences, in order. `emit` adds a node."""

    def __init__(self, emit: Emit, metadata: dict[str, Value]):
        self.emit = emit
        self.metadata = metadata
        self.layers: list[StateLayer] = []

    def carry(self, op: str, rows: list[Value], w: Value, attrs: dict[str, Any], *more: Value | None) -> Value:
        """Adds the op with a state of its own. Returns its first result."""
        layer = len(self.layers)
        self.layers.append(state_layer(op, rows, w, attrs))
        if "state_slots" not in self.metadata:
            (self.metadata["state_slots"],) = self.emit("input", (), {}, [("int32", ("seqs",))], "state_slots")
        (state,) = self.emit("input", (), {}, [("state", ())], f"state.{layer}")
        batch = [self.metadata[name] for name in ("seq_starts", "context_lens", "state_slots")]
        return self.emit(op, [*rows, *batch, state, w, *more], {"state": layer, **attrs})[0]

    def carry_conv(self, node: Node, x: Value) -> Value:
        w = node.operand(1)
        expr, (channels, width) = w.producer.attrs["expr"], w.shape
        (turned,) = self.emit("weight", (), {"expr": expr.transpose(0, 1)}, [(w.dtype, (width, channels))])
        return self.carry("carried_conv", [x], turned, dict(node.attrs), node.optional(2))

    def carry_scan(self, m: Match, row: Value, dt: Value) -> Value:
        heads, groups = m.root.attrs["heads"], m.root.attrs["groups"]
        first, *rest = (v.producer.attrs["expr"] for v in (m.a_log, m.d, m.dt_bias))
        kind: tuple[str, Shape] = (m.d.dtype, (3, heads))
        (w,) = self.emit("weight", (), {"expr": first.stack(rest)}, [kind])
        states = (m.c_end - m.b_end) // groups
        return self.carry("carried_scan", [row, dt], w, {**m.root.attrs, "states": states})

    def carry_selective_scan(self, m: Match, rows: list[Value]) -> Value:
        channels, states = (int(n) for n in m.a_log.shape)
        a_log, *rest = (v.producer.attrs["expr"] for v in (m.a_log, m.d, m.dt_bias))
        expr = a_log.transpose(0, 1).concat([vector.reshape([1, channels]) for vector in rest])
        kind: tuple[str, Shape] = (m.d.dtype, (states + 2, channels))
        (w,) = self.emit("weight", (), {"expr": expr}, [kind])
        return self.carry("carried_selective_scan", rows, w, {"states": states})

    def carry_rg_lru(self, m: Match, rows: list[Value]) -> Value:
        (channels,) = m.p.shape
        p, *biases = (v.producer.attrs["expr"] for v in (m.p, m.gate_bias, m.decay_bias))
        kind: tuple[str, Shape] = (m.p.dtype, (3, channels))
        (w,) = self.emit("weight", (), {"expr": p.stack(biases)}, [kind])
        return self.carry("carried_rg_lru", rows, w, {})

    def carry_linear_attention(self, m: Match, row: Value) -> Value:
        heads = m.root.attrs["heads"]
        attrs = {"heads": heads, "states": (m.k_end - m.v_end) // heads}
        return self.carry("carried_linear_attention", [row], m.slopes, attrs)

    def carry_delta_rule(self, m: Match, row: Value, dt: Value, beta: Value) -> Value:
        heads = m.root.attrs["heads"]
        width = (m.v_end - m.k_end) // heads
        attrs = {**m.root.attrs, "width": width, "beta_scale": 1.0 if m.scale is None else m.scalar(m.scale)}
        kind: tuple[str, Shape] = (m.a_log.dtype, (heads,))
        (w,) = self.emit("weight", (), {"expr": m.a_log.producer.attrs["expr"].reshape([heads])}, [kind])
        return self.carry("carried_delta_rule", [row, dt, beta], w, attrs)


def check_delta_rule(m: Match) -> None:
    m.require(m.v_end == m.row.shape[-1], "q, k and v are not all of the row", m.row)
    m.require(m.a_log.node.op == "weight", "not a weight of the checkpoint", m.a_log)
    heads, shape = m.root.attrs["heads"], m.steps.shape
    m.require(m.dt.rank == 3 and m.dt.shape[:2] == shape[:2] == m.decay.shape[:2], "not a row for each token", m.dt)
    wanted = (heads,) if len(shape) == 3 else (heads, 1)
    sizes = tuple(m.a_log.shape)
    m.require(shape[2] == heads and sizes[-len(wanted):] == wanted and prod(map(int, sizes)) == heads,
              "the heads do not decay by a number each", m.a_log)  # fmt: skip


def check_vectors(m: Match) -> None:
    for value in (m.a_log, m.d, m.dt_bias):
        m.require(value.node.op == "weight", "not a weight of the checkpoint", value)


def check_scan(m: Match) -> None:
    m.require(m.c_end == m.row.shape[-1], "x, b and c are not all of the row", m.row)
    check_vectors(m)


def check_linear_attention(m: Match) -> None:
    m.require(m.q_end == m.row.shape[-1], "v, k and q are not all of the row", m.row)
    m.require(m.slopes.node.op == "weight", "not a weight of the checkpoint", m.slopes)


def check_rg_lru(m: Match) -> None:
    m.require(m.positions.node.op == "input" and m.positions.name == "position_ids", "no positions", m.positions)
    for value in (m.p, m.gate_bias, m.decay_bias):
        m.require(value.node.op == "weight" and value.rank == 1, "not a vector of the checkpoint", value)


FORMS = {
    "state_space_scan": (SCAN, check_scan),
    "selective_scan": (SELECTIVE_SCAN, check_vectors),
    "delta_rule": (DELTA_RULE, check_delta_rule),
    "linear_attention": (LINEAR_ATTENTION, check_linear_attention),
    "rg_lru": (RG_LRU, check_rg_lru),
}
"""The pattern of each recurrence that reads parts of a row or decays by stored weights, and its check."""


def read_recurrence(node: Node) -> Match | None:
    """Returns the match of a recurrence of FORMS, or None if it is written in another way."""
    return match_value(node.output, *FORMS[node.op])
