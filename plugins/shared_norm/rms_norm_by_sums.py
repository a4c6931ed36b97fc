"""rms_norm_by_sums(x, sums, w){start, offset, size, first}:  x, with the columns of a rank from `start` on normalised

The rank has len(w) columns of runs of `size` columns each, from the number `offset` on, as square_sums counts them. The
sum of the squares of run i, over all ranks, is the column first + i of `sums`.

    y[t, c] = x[t, c] * (1 / sqrt(sums[t, first + run of c] / size + eps)) * (w[c] + weight_offset)

x: [T, C] float32, sums: [T, N] float32, w: [columns].  y: [T, C]; columns beside those of w are those of x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import InPlace, Instruction, Op, rows, shared
from tensorwright.plugins.rounding import round_to
from tensorwright.plugins.shared_norm.square_sums import pieces


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns x's type and shape. Raises GraphError for columns or sums that are not there."""
    x, sums, w = inputs
    start, offset, size, first = (attrs[name] for name in ("start", "offset", "size", "first"))
    ranks = (x.rank, sums.rank, w.rank) == (2, 2, 1) and isinstance(x.shape[1], int) and isinstance(w.shape[0], int)
    fits = ranks and min(start, offset, first) >= 0 and size >= 1 and start + int(w.shape[0]) <= int(x.shape[1])
    if not fits or first + (offset + int(w.shape[0]) - 1) // size >= int(sums.shape[1]):
        raise GraphError(
            f"rms_norm_by_sums: w {list(w.shape)} from column {start} on must lie in x {list(x.shape)}, and its runs "
            f"of {size} from {offset} on, behind {first}, in sums {list(sums.shape)}"
        )
    return [(x.dtype, x.shape)]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes in float64."""
    x, sums, w = inputs
    y = x.astype(np.float64)
    for run, begin, end in pieces(len(w), attrs["offset"], attrs["size"]):
        mean = sums[:, attrs["first"] + run].astype(np.float64) / attrs["size"]
        scale = 1.0 / np.sqrt(mean + attrs["eps"])
        factors = w[begin:end].astype(np.float64) + attrs["weight_offset"]
        y[:, attrs["start"] + begin : attrs["start"] + end] *= scale[:, None] * factors
    return [round_to(y.astype(np.float32), act_dtype)]


OP = Op(
    "rms_norm_by_sums",
    operands=(rows("x"), rows("sums"), shared("w", wide=True)),
    attrs={
        "start": "int",
        "offset": "int",
        "size": "int",
        "first": "int",
        "eps": "float",
        "weight_offset": "float",
    },
    stages=("cached",),
    infer=infer,
    reference=reference,
    per_token=True,
)
INSTRUCTION = Instruction(
    "rms_norm_by_sums",
    number=41,
    operands=(rows("x"), rows("sums"), shared("w", RAW)),
    attrs=OP.attrs,
    reference=reference,
    in_place=(InPlace("y", ("x",)),),
)
