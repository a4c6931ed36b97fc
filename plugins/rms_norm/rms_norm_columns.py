"""rms_norm_columns(x, w):  x, with each of `heads` runs of D columns from `start` on normalised alone

x: [T, N], w: [D], shared by the runs.  It serves norms of q and k in a row of qkv: a run per head, or one wide run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import InPlace, Instruction, Op, rows, shared
from tensorwright.plugins.rms_norm.op import normalise
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns x's type and shape, for y."""
    x, w = inputs
    start, heads = attrs["start"], attrs["heads"]
    fits = x.rank == 2 and w.rank == 1 and isinstance(x.shape[1], int) and isinstance(w.shape[0], int)
    if not fits or start < 0 or heads < 1 or start + heads * int(w.shape[0]) > int(x.shape[1]):
        raise GraphError(
            f"rms_norm_columns: {heads} runs of w {list(w.shape)} from column {start} on must lie in x {list(x.shape)}"
        )
    return [(x.dtype, x.shape)]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, w = inputs
    y = x.astype(np.float32)
    start, end = attrs["start"], attrs["start"] + attrs["heads"] * len(w)
    runs = y[:, start:end].reshape(len(y), attrs["heads"], len(w))
    y[:, start:end] = normalise(runs, w, attrs["eps"], attrs["weight_offset"]).reshape(len(y), end - start)
    return [round_to(y, act_dtype)]


OP = Op(
    "rms_norm_columns",
    operands=(rows("x"), shared("w", wide=True)),
    attrs={"start": "int", "heads": "int", "eps": "float", "weight_offset": "float"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    per_token=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "rms_norm_columns",
    number=10,
    operands=(rows("x"), shared("w", RAW)),
    attrs=OP.attrs,
    reference=reference,
    sums=True,
    in_place=(InPlace("y", ("x",)),),
)
