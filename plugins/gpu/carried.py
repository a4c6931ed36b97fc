"""Makes the launches of operations that carry a state per sequence: what their launch.py files share.

    inputs   the op's rows [T, ...] of one type, its weights float32, seq_starts [S + 1], context_lens [S] and
             state_slots [S] int32, and states float32, the state of slot 0; those of further slots follow at a
             distance of `slot_numbers` numbers, an attribute of each call
    outputs  y [T, ...] of the type of the rows
The states change in place. A program takes one sequence and a part of its columns, token after token: a state's bits do
not depend on where a sequence is cut into steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    Constant,
    KernelSpec,
    Launch,
    Tensor,
    grid_of,
    make_launch,
    require_dense,
    require_shape,
)

BATCH = ("seq_starts", "context_lens", "state_slots")


def carried_spec(
    kernel: str,
    module: str,
    rows: tuple[str, ...],
    weights: tuple[str, ...],
    dtypes: Mapping[str, str],
    constants: Mapping[str, Constant],
    num_warps: int = 4,
    numbers: tuple[str, ...] = (),
) -> KernelSpec:
    """Returns a specialisation. Its arguments are rows, weights, of which some may be absent, BATCH, states, y, and
    `numbers`, which are floats."""
    kind = POINTERS[dtypes[rows[0]]]
    present = tuple(name for name in weights if name in dtypes)
    return KernelSpec(
        kernel=kernel,
        module=module,
        signature=(
            *((name, kind) for name in rows),
            *((name, "*fp32") for name in present),
            *((name, "*i32") for name in BATCH),
            ("states", "*fp32"),
            ("y", kind),
            *((name, "fp32") for name in numbers),
        ),
        constants=(*((name, None) for name in weights if name not in dtypes), *constants.items()),
        aligned=(*rows, *present, "states", "y"),
        num_warps=num_warps,
        num_stages=1,
        # Lanes that add up products exchange them: were a product and a sum one rounding, they would get two results.
        fp_fusion=False,
    )


def carried_launch(
    spec: KernelSpec,
    parts: tuple[int, ...],
    inputs: Mapping[str, Tensor],
    y: Tensor,
    shapes: Mapping[str, tuple[int, ...]],
    state: int,
    numbers: Mapping[str, float] | None = None,
) -> list[Launch]:
    """Returns the launch of a program for each sequence and each of `parts`, or none for a step without tokens.

    shapes: of the operands that are rows, of the weights, and of y. state: the numbers of a state. Raises KernelError.
    """
    dtypes = dict(spec.signature)
    tokens, seqs = y.shape[0], inputs["context_lens"].shape[0]
    for name, tensor in {**inputs, "y": y}.items():
        if name in shapes:
            require_shape(tensor, shapes[name], "float32" if dtypes[name] == "*fp32" else y.dtype)
    for name, count in (("seq_starts", seqs + 1), ("context_lens", seqs), ("state_slots", seqs)):
        require_shape(inputs[name], (count,), "int32")
    require_dense(*inputs.values(), y)
    if inputs["states"].dtype != "float32" or inputs["states"].shape[0] < state:
        raise KernelError(f"{spec.kernel}: a state must hold {state} float32 numbers, got {inputs['states']}")
    if tokens == 0 or seqs == 0:
        return []
    values: dict[str, Any] = {**inputs, "y": y, **(numbers or {})}
    return [make_launch(spec, grid_of(seqs, *parts), {name: values[name] for name, _ in spec.signature})]
