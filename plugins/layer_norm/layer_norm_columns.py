"""layer_norm_columns(x, w, b?):  x, with each of `heads` runs of `width` columns from `start` on normalised alone

x: [T, N], w, b: [width], shared by the runs, or [heads, width] (flat once lowered).  The op serves norms of q and k
inside a row of qkv.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.layer_norm.op import normalise
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns x's type and shape, for y."""
    x, w, *bias = inputs
    b = bias[0] if bias else None
    start, heads, width = attrs["start"], attrs["heads"], attrs["width"]
    fits = x.rank == 2 and isinstance(x.shape[1], int) and w.shape in ((width,), (heads, width))
    if not fits or start < 0 or heads < 1 or width < 1 or start + heads * width > int(x.shape[1]):
        raise GraphError(
            f"layer_norm_columns: {heads} runs of {width} columns from {start} on, with w {list(w.shape)}, "
            f"must lie in x {list(x.shape)}"
        )
    if b is not None and b.shape != w.shape:
        raise GraphError(f"layer_norm_columns: b must have w's shape {list(w.shape)}, got {list(b.shape)}")
    return [(x.dtype, x.shape)]


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, w, b = (*inputs, None)[:3]
    heads, width = attrs["heads"], attrs["width"]
    y = x.astype(np.float32)
    start, end = attrs["start"], attrs["start"] + heads * width
    runs = y[:, start:end].reshape(len(y), heads, width)
    w, b = w.reshape(-1, width), None if b is None else b.reshape(-1, width)
    y[:, start:end] = normalise(runs, w, b, attrs["eps"], attrs["weight_offset"]).reshape(len(y), end - start)
    return [round_to(y, act_dtype)]


OP = Op(
    "layer_norm_columns",
    operands=(rows("x"), shared("w", wide=True), shared("b?", wide=True)),
    attrs={"start": "int", "heads": "int", "width": "int", "eps": "float", "weight_offset": "float"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    per_token=True,
    sums=True,
)
