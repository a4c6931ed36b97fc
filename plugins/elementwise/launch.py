"""Makes the launch of an elementwise program (op.py has its words): y = program, column by column.

    inputs   x0, x1?, x2?, x3? [..., C] each, or [..., 1] for one value of each row; w? [C]
    outputs  y [..., C]; it may be the memory of an x of its type and shape
attrs: program; for `kernels`, which sees no tensor, also `channels` (C) and `per_row` (the names of the operands that
have one value of each row, joined by spaces). Every tensor is of any floating type. The program computes in float32 and
the result is rounded once, so the program "x0" is a cast.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError
from tensorwright.plugins.elementwise.op import OPERANDS, UNARY, encode
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.elementwise.gpu"
BLOCK = 1024
"""The elements of a program: 8 for each of 128 threads."""


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per program, number of columns and types."""
    return (_spec(attrs["program"], attrs["channels"], attrs.get("per_row", ""), dtypes),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    y = outputs["y"]
    channels, per_row = y.shape[-1], []
    for name, tensor in inputs.items():
        if name == "w":
            require_shape(tensor, (channels,), tensor.dtype)
        elif channels != 1 and tensor.shape[-1] == 1:
            require_shape(tensor, (*y.shape[:-1], 1), tensor.dtype)
            per_row.append(name)
        else:
            require_shape(tensor, y.shape, tensor.dtype)
    require_dense(*inputs.values(), y)
    if prod(y.shape) == 0:
        return []
    dtypes = {name: tensor.dtype for name, tensor in {**inputs, "y": y}.items()}
    spec = _spec(attrs["program"], channels, " ".join(per_row), dtypes)
    rows = prod(y.shape[:-1])
    return [make_launch(spec, grid_of(ceil_div(rows * channels, BLOCK)), {**inputs, "y": y, "rows": rows})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(program: str, channels: int, per_row: str, dtypes: Mapping[str, str]) -> KernelSpec:
    encode(program)
    used = {word for word in program.split() if word in OPERANDS}
    if used != set(dtypes) - {"y"} or channels < 1:
        raise KernelError(
            f"elementwise: the program {program!r} reads {', '.join(sorted(used)) or 'nothing'}; "
            f"got {', '.join(dtypes)} of {channels} columns"
        )
    tensors = tuple((name, POINTERS[dtypes[name]]) for name in (*OPERANDS, "y") if name in dtypes)
    whole = [name for name, _ in tensors if name not in per_row.split()]
    wide = all(channels * ITEM_BYTES[dtypes[name]] % 16 == 0 for name in whole)
    return KernelSpec(
        kernel="elementwise_kernel",
        module=MODULE,
        signature=(*tensors, ("rows", "i32")),
        constants=(
            *((name, None) for name in OPERANDS if name not in dtypes),
            ("PROGRAM", " ".join(program.split())),
            ("UNARY", " ".join(UNARY)),
            ("PER_ROW", per_row),
            ("C", channels),
            ("BLOCK", BLOCK),
        ),
        aligned=tuple(whole) if wide else (),
        num_warps=4,
    )
