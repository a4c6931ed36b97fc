"""experts(x, index, weights, up, down, up_bias?, down_bias?){activation, ...}:  a mixture of experts

    y = sum over slots s of weights[s] * expert index[s] of x
    expert e of x = down[e] gate(up[e] x + up_bias[e]) + down_bias[e], or x for the `identities` numbers from E on

Of a mixture of `total` experts, a rank may have E from the number `first` on: a slot with another expert adds nothing.

gate.py says what stands between the products, and which attributes a node may lack. Most experts are gated: up holds
the rows of the gate first and then those of up, and the gate is act(gate) * up.

x: [..., H], index: integers [..., k], weights: float [..., k], up: [E, 2I, H], or [E, I, H] without a gate,
down: [E, H, I], up_bias: [E, 2I] or [E, I], down_bias: [E, H].  y: [..., H].  A row's slots are summed in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS, gated
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Dim, Shape, Value
from tensorwright.ir.records import Instruction, Op, rows, shared
from tensorwright.plugins.experts.gate import OPTIONAL_ATTRS, apply_gate, check_gate
from tensorwright.plugins.gated import ACTIVATIONS
from tensorwright.plugins.rounding import round_to

PART = {"first": "int", "total": "int"}
"""The attributes that say which experts a rank has; both are 0 if it has all."""
COUNTS = ("identities", *PART)

Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Returns x w^T."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x. Raises GraphError for operands that do not fit."""
    halves = 2 if check_gate({k: v for k, v in attrs.items() if k not in COUNTS})["gated"] else 1
    if attrs.get("identities", 0) < 0:
        raise GraphError(f"experts: identities must not be negative, got {attrs['identities']}")
    x, index, weights, up, down, up_bias, down_bias = (*inputs, None, None)[:7]
    if x is None or index is None or weights is None or up is None or down is None:
        raise GraphError("experts: all operands but biases must be present")
    if index.dtype not in ("int32", "int64") or index.shape != weights.shape or index.shape[:-1] != x.shape[:-1]:
        raise GraphError(
            f"experts: index must be integers, one for each of weights {list(weights.shape)} and of x's rows "
            f"{list(x.shape)}, got {index.dtype}{list(index.shape)}"
        )
    check_part(attrs, up.shape[0])
    fits = up.rank == down.rank == 3 and up.shape[0] == down.shape[0]
    fits = fits and up.shape[2] == down.shape[1] == x.shape[-1]
    if not fits or up.shape[1] != halves * int(down.shape[2]):
        wanted = f"[E, {'2I' if halves == 2 else 'I'}, {x.shape[-1]}] and [E, {x.shape[-1]}, I]"
        raise GraphError(f"experts: up and down must be {wanted}, got {list(up.shape)} and {list(down.shape)}")
    for bias, matrix in ((up_bias, up), (down_bias, down)):
        if bias is not None and bias.shape != matrix.shape[:2]:
            raise GraphError(f"experts: a bias must be {list(matrix.shape[:2])}, got {list(bias.shape)}")
    return [(x.dtype, x.shape)]


def check_part(attrs: dict[str, Any], experts: Dim) -> None:
    """Raises GraphError unless the experts of a rank lie among all of them."""
    first, total = attrs.get("first", 0), attrs.get("total", 0)
    if not isinstance(experts, int) or (total == 0 and first == 0):
        return
    if first < 0 or first + experts > total or attrs.get("identities", 0):
        raise GraphError(
            f"experts: {experts} from the number {first} on must lie among all {total}, of which none is an identity"
        )


def own_experts(chosen: np.ndarray, attrs: dict[str, Any], count: int) -> list[tuple[int, np.ndarray]]:
    """Returns the experts that rows take and the rank has: the number among those of the rank, and which places of
    `chosen` name it. count: how many it has. Identities have numbers from there on."""
    first, end = attrs.get("first", 0), count + attrs.get("identities", 0)
    numbers = [int(expert) - first for expert in np.unique(chosen)]
    partial = attrs.get("total", 0) > 0
    return [(own, chosen == own + first) for own in numbers if not partial or 0 <= own < end]


def compute(inputs: Sequence[Any], attrs: dict[str, Any], multiply: Multiply) -> np.ndarray:
    """Returns y, in float64. Rounds what lies between the two products to the attribute `inner`, where it is given."""
    x, index, weights, up, down, up_bias, down_bias = (*inputs, None, None)[:7]
    flat = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
    chosen, shares = index.reshape(len(flat), -1), weights.reshape(len(flat), -1).astype(np.float64)
    y = np.zeros(flat.shape)
    for expert, places in own_experts(chosen, attrs, up.shape[0]):
        row, slot = np.nonzero(places)
        share = shares[row, slot, None]
        if 0 <= expert - up.shape[0] < attrs.get("identities", 0):
            np.add.at(y, row, share * flat[row])
            continue
        inner = inner_of(flat[row], up[expert], None if up_bias is None else up_bias[expert], share, attrs, multiply)
        given = multiply(inner, down[expert]) + (0.0 if down_bias is None else down_bias[expert].astype(np.float64))
        np.add.at(y, row, given if attrs.get("scales_input", False) else share * given)
    return y.reshape(x.shape)


def inner_of(
    x: np.ndarray, up: np.ndarray, bias: np.ndarray | None, share: np.ndarray, attrs: dict[str, Any], multiply: Multiply
) -> np.ndarray:
    """Returns what lies between the products of one expert, [rows, I]. share: [rows, 1]."""
    scaled = share * x if attrs.get("scales_input", False) else x
    if "inner" in attrs:
        scaled = round_to(scaled.astype(np.float32), attrs["inner"])
    inner = apply_gate(multiply(scaled, up) + (0.0 if bias is None else bias.astype(np.float64)), attrs)
    return round_to(inner.astype(np.float32), attrs["inner"]) if "inner" in attrs else inner


def multiply_floats(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns x w^T in float64."""
    result: np.ndarray = x.astype(np.float64) @ w.astype(np.float64).T
    return result


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes in float64. Rounds what lies between the two products to the attribute `inner`, where it is given."""
    return [compute(inputs, attrs, multiply_floats).astype(np.float32)]


OPERANDS = (rows("x"), rows("index"), rows("weights"), shared("up"), shared("down"))
BIASES = (shared("up_bias?"), shared("down_bias?"))
OP = Op(
    "experts",
    operands=(*OPERANDS, *BIASES),
    attrs={"activation": "str"},
    optional_attrs={**OPTIONAL_ATTRS, **dict.fromkeys(COUNTS, "int")},
    stages=("traced", "fused", "cached"),
    infer=infer,
    reference=reference,
    kind="mixture",
    per_token=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "experts",
    number=15,
    operands=(*OPERANDS[:3], shared("gate_up", gated(PANELS)), shared("down", PANELS)),
    attrs={"experts": "int", "activation": "str", "identities": "int", **PART, "inner": "dtype"},
    words={"activation": ACTIVATIONS},
    kind="mixture",
    reference=reference,
    sums=True,
)
"""Gated experts without what a node may lack, but with identities. `inner` is the type between the two products. It is
not stored, for it is that of x."""
