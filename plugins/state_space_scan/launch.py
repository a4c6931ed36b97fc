"""Makes the launches of carried_scan: rows row [T, heads P + 2 groups N] and dt [T, heads], weights w [3, heads].

attrs: those of the op and slot_numbers; for `kernels`, which sees no tensor, also columns, those of a row.
plugins/gpu/carried.py has the rest. `scan_spec` and `scan_launch` serve linear_attention too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.carried import carried_launch, carried_spec
from tensorwright.plugins.gpu.launch import KernelSpec, Launch, Tensor, ceil_div, next_power_of_2

MODULE = "tensorwright.plugins.state_space_scan.gpu"
STATE = 4096
"""The most numbers of a state that a program holds, for rows of up to 256: 32 for each of 128 threads."""
MAX_STATES = 512


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (scan_spec(attrs, dtypes, attrs["groups"], attrs["columns"], stepped=True),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    return scan_launch(attrs, inputs, outputs["y"], attrs["groups"], stepped=True)


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def scan_launch(
    attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], y: Tensor, groups: int, *, stepped: bool
) -> list[Launch]:
    """Returns the launch. stepped: whether there are dt and three weights for each head."""
    (tokens, columns), heads, count = inputs["row"].shape, attrs["heads"], attrs["states"]
    dtypes = {name: tensor.dtype for name, tensor in inputs.items()}
    spec = scan_spec(attrs, dtypes, groups, columns, stepped=stepped)
    width = spec.size("P")
    shapes: dict[str, tuple[int, ...]] = {"row": (tokens, columns), "y": (tokens, heads * width), "w": (heads,)}
    shapes |= {"dt": (tokens, heads), "w": (3, heads)} if stepped else {}
    limits = {name: float(attrs[name]) for name in ("dt_min", "dt_max")} if stepped else {}
    parts = (heads, ceil_div(width, spec.size("P_BLOCK")))
    return carried_launch(spec, parts, inputs, y, shapes, heads * count * width, limits)


def scan_spec(
    attrs: Mapping[str, Any], dtypes: Mapping[str, str], groups: int, columns: int, *, stepped: bool
) -> KernelSpec:
    heads, count = attrs["heads"], attrs["states"]
    width, rest = divmod(columns - 2 * groups * count, heads)
    if not 1 <= count <= MAX_STATES or width < 1 or rest or heads % groups:
        raise KernelError(
            f"a scan on a GPU: states must be 1 to {MAX_STATES}, and a row hold {heads} heads and {groups} groups, got "
            f"{count} states and {columns} columns"
        )
    block = next_power_of_2(count)
    constants: dict[str, Any] = {
        "HEADS": heads, "GROUPS": groups, "N": count, "P": width, "STEPPED": stepped, "SLOT": attrs["slot_numbers"],
        "N_BLOCK": block, "P_BLOCK": min(next_power_of_2(width), max(STATE // block, 8)),
    }  # fmt: skip
    rows, limits = (("row", "dt"), ("dt_min", "dt_max")) if stepped else (("row",), ())
    absent = {} if stepped else dict.fromkeys(("dt", "dt_min", "dt_max"))
    return carried_spec("carried_scan_kernel", MODULE, rows, ("w",), dtypes, {**absent, **constants}, numbers=limits)
