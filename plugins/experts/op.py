"""experts(x, index, weights, gate_up, down){activation}:  y = sum over slots s of weights[s] * expert index[s] of x

An expert is a gated layer:  expert e of x = down[e] (act(gate) * up),  [gate, up] = gate_up[e] x.

x: [..., H], index: integers [..., k], weights: float [..., k], gate_up: [E, 2I, H] with the rows of the gate first
and then those of up, down: [E, H, I].  y: [..., H].  act is one of ACTIVATIONS. A row's slots are summed in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS, gated
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows, shared
from tensorwright.plugins.gated import ACTIVATIONS
from tensorwright.plugins.gated import gated as gate
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x. Raises GraphError for operands that do not fit."""
    if attrs["activation"] not in ACTIVATIONS:
        raise GraphError(f"experts: activation must be one of {', '.join(ACTIVATIONS)}, got {attrs['activation']!r}")
    x, index, weights, gate_up, down = inputs
    if x is None or index is None or weights is None or gate_up is None or down is None:
        raise GraphError("experts: all operands must be present")
    if index.dtype not in ("int32", "int64") or index.shape != weights.shape or index.shape[:-1] != x.shape[:-1]:
        raise GraphError(
            f"experts: index must be integers, one for each of weights {list(weights.shape)} and of x's rows "
            f"{list(x.shape)}, got {index.dtype}{list(index.shape)}"
        )
    fits = gate_up.rank == down.rank == 3 and gate_up.shape[0] == down.shape[0]
    fits = fits and gate_up.shape[2] == down.shape[1] == x.shape[-1]
    if not fits or gate_up.shape[1] != 2 * int(down.shape[2]):
        raise GraphError(
            f"experts: gate_up and down must be [E, 2I, {x.shape[-1]}] and [E, {x.shape[-1]}, I], got "
            f"{list(gate_up.shape)} and {list(down.shape)}"
        )
    return [(x.dtype, x.shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes in float64. Rounds what lies between the two products to the attribute `inner`, where it is given."""
    x, index, weights, gate_up, down = inputs
    hidden = x.shape[-1]
    flat = x.reshape(-1, hidden).astype(np.float64)
    chosen, shares = index.reshape(len(flat), -1), weights.reshape(len(flat), -1).astype(np.float64)
    y = np.zeros_like(flat)
    for slot in range(chosen.shape[1]):
        for expert in np.unique(chosen[:, slot]):
            taken = chosen[:, slot] == expert
            inner = gate(flat[taken] @ gate_up[expert].astype(np.float64).T, attrs["activation"])
            inner = round_to(inner.astype(np.float32), attrs["inner"]) if "inner" in attrs else inner
            y[taken] += shares[taken, slot, None] * (inner.astype(np.float64) @ down[expert].astype(np.float64).T)
    return [y.reshape(x.shape).astype(np.float32)]


OPERANDS = (rows("x"), rows("index"), rows("weights"), shared("gate_up"), shared("down"))
OP = Op(
    "experts",
    operands=OPERANDS,
    attrs={"activation": "str"},
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
    attrs={"experts": "int", "activation": "str", "inner": "dtype"},
    words={"activation": ACTIVATIONS},
    kind="mixture",
    reference=reference,
    sums=True,
)
"""`inner` is the type between the two products. It is not stored, for it is that of x."""
