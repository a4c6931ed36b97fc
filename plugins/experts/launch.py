"""Makes the launches of experts, a mixture: pairs are sorted by expert, multiplied, gated, multiplied, and summed.

    inputs   x [T, H], index [T, k] int32, weights [T, k] float32, up [E, 2 I, H] or [E, I, H], down [E, H, I],
             up_bias [E, 2 I] or [E, I] and down_bias [E, H] float32 (either may be absent)
    outputs  y [T, H]; x, up, down and y are of one type
Quantized matrices have the form that rows_launch.py of quantized_matmul gives of these shapes, with up_scales and
down_scales beside them. attrs: those of the op, and optional form and group of the matrices; for `kernels`, which sees
no tensor, also `experts` (E), `hidden` (H), `inner` (I) and `k`. What lies between the products, and what each slot
gives, are rounded to that type; both go through the workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError
from tensorwright.plugins.experts.gate import OPTIONAL_ATTRS, check_gate
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    Constant,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)
from tensorwright.plugins.quantized_matmul.rows_launch import FLOAT, Form

MODULE = "tensorwright.plugins.experts.gpu"
MAX_EXPERTS = 2048
ROWS = (16, 64)
"""The pairs of a tile, in each specialisation. Experts with more pairs than the first, on average, get the second."""
COLUMNS = 64
WARPS = {16: 4, 64: 8}
STAGES = 3
ORDER_BLOCK = 1024
SUM_BLOCK = 1024
ALIGNMENT = 256


@dataclass(frozen=True)
class Sizes:
    """What the kernels of one mixture are compiled for. The workspace is `starts`, then a record for each pair: its
    place in `order`, its row of `inner` and its row of `parts`, each aligned to 16 bytes."""

    experts: int
    hidden: int
    inner: int
    k: int
    dtype: str

    @property
    def starts_bytes(self) -> int:
        return ceil_div(4 * (self.experts + 1), ALIGNMENT) * ALIGNMENT

    @property
    def inner_at(self) -> int:
        """The byte of a record where the row of `inner` begins."""
        return 16

    @property
    def parts_at(self) -> int:
        return self.inner_at + ceil_div(self.inner * ITEM_BYTES[self.dtype], 16) * 16

    @property
    def record_bytes(self) -> int:
        return self.parts_at + ceil_div(self.hidden * ITEM_BYTES[self.dtype], 16) * 16


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernels for all numbers of tokens."""
    sizes = Sizes(attrs["experts"], attrs["hidden"], attrs["inner"], attrs["k"], dtypes["x"])
    products = (form(attrs, sizes, dtypes, rows) for rows in ROWS for form in (_up, _down))
    return (_order(attrs, sizes), *products, _sum(attrs, sizes))


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens. `workspace`: any type, of at least `workspace_bytes`."""
    sizes = _check(attrs, inputs, outputs["y"])
    tokens = inputs["x"].shape[0]
    if tokens == 0:
        return []
    pairs = tokens * sizes.k
    needed = sizes.starts_bytes + pairs * sizes.record_bytes
    if workspace is None or workspace.shape[0] * workspace.item_bytes < needed:
        raise KernelError(f"experts: {tokens} tokens need a workspace of {needed} bytes, got {workspace}")
    parts = _parts_of(workspace, sizes, pairs)
    dtypes = {name: tensor.dtype for name, tensor in inputs.items()}
    rows = ROWS[0] if pairs <= ROWS[0] * sizes.experts else ROWS[1]
    tiles = pairs if pairs <= sizes.experts else pairs // rows + sizes.experts
    known = {**inputs, **parts, "y": outputs["y"], "pairs": pairs, **_numbers(attrs)}
    work = (
        (_order(attrs, sizes), grid_of(sizes.experts + 1)),
        (_up(attrs, sizes, dtypes, rows), grid_of(tiles, ceil_div(sizes.inner, COLUMNS))),
        (_down(attrs, sizes, dtypes, rows), grid_of(tiles, ceil_div(sizes.hidden, COLUMNS))),
        (_sum(attrs, sizes), grid_of(tokens, ceil_div(sizes.hidden, SUM_BLOCK))),
    )
    matrices = {"experts_up_kernel": "up", "experts_down_kernel": "down"}
    made = []
    for spec, grid in work:
        matrix = matrices.get(spec.kernel, "")
        values = {**known, **{name: known.get(f"{matrix}_{name}") for name in ("bias", "scales")}}
        made.append(make_launch(spec, grid, {name: values[name] for name, _ in spec.signature}))
    return made


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns enough for every number of tokens up to that of shapes_max["x"].

    shapes_max has the shapes of x, index and down. attrs["dtype"]: the type of x; absent, it is taken for float32.
    attrs["inner"] may be absent if the matrices are not quantized.
    """
    (tokens, hidden), (experts, _, row) = shapes_max["x"], shapes_max["down"]
    sizes = Sizes(experts, hidden, attrs.get("inner", row), shapes_max["index"][1], attrs.get("dtype", "float32"))
    return sizes.starts_bytes + tokens * sizes.k * sizes.record_bytes


def _parts_of(workspace: Tensor, sizes: Sizes, pairs: int) -> dict[str, Tensor]:
    """Returns the tensors that lie in the workspace."""
    item, records = ITEM_BYTES[sizes.dtype], workspace.address + sizes.starts_bytes
    rows = sizes.record_bytes // item
    return {
        "starts": Tensor.dense("starts", workspace.address, (sizes.experts + 1,), "int32"),
        "order": Tensor("order", records, (pairs,), (sizes.record_bytes // 4,), "int32"),
        "inner": Tensor("inner", records + sizes.inner_at, (pairs, sizes.inner), (rows, 1), sizes.dtype),
        "parts": Tensor("parts", records + sizes.parts_at, (pairs, sizes.hidden), (rows, 1), sizes.dtype),
    }


def _check(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], y: Tensor) -> Sizes:
    x, index, down = inputs["x"], inputs["index"], inputs["down"]
    (tokens, hidden), k, experts, inner = x.shape, index.shape[1], down.shape[0], attrs.get("inner", down.shape[2])
    halves = 2 if _gate(attrs)["gated"] else 1
    require_shape(index, (tokens, k), "int32")
    require_shape(inputs["weights"], (tokens, k), "float32")
    form = _form(attrs)
    for name, whole in (("up", (experts, halves * inner, hidden)), ("down", (experts, hidden, inner))):
        form.check(inputs[name], inputs.get(f"{name}_scales"), whole, x.dtype)
    require_shape(y, (tokens, hidden), x.dtype)
    for name, shape in (("up_bias", (experts, halves * inner)), ("down_bias", (experts, hidden))):
        if name in inputs:
            require_shape(inputs[name], shape, "float32")
    require_dense(*inputs.values(), y)
    return Sizes(experts, hidden, inner, k, x.dtype)


def _gate(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what gate.py knows of the attributes, with the values of those that are absent."""
    return check_gate({name: attrs[name] for name in ("activation", *OPTIONAL_ATTRS) if name in attrs})


def _form(attrs: Mapping[str, Any]) -> Form:
    return Form(attrs.get("form", FLOAT), attrs.get("group", 0))


def _numbers(attrs: Mapping[str, Any]) -> dict[str, float]:
    gate = _gate(attrs)
    return {name: float(gate[name]) for name in ("slope", "limit", "up_offset")}


def _order(attrs: Mapping[str, Any], sizes: Sizes) -> KernelSpec:
    if not 1 <= sizes.experts <= MAX_EXPERTS or min(sizes.hidden, sizes.inner, sizes.k) < 1:
        raise KernelError(f"experts on a GPU: there must be 1 to {MAX_EXPERTS} experts, got {sizes}")
    return KernelSpec(
        kernel="expert_order_kernel",
        module=MODULE,
        signature=(("index", "*i32"), ("starts", "*i32"), ("order", "*i32"), ("pairs", "i32")),
        constants=(
            ("E", sizes.experts),
            ("FIRST", attrs.get("first", 0)),
            ("ORDER_STRIDE", sizes.record_bytes // 4),
            ("BLOCK", ORDER_BLOCK),
        ),
        num_warps=4,
    )


def _up(attrs: Mapping[str, Any], sizes: Sizes, dtypes: Mapping[str, str], rows: int) -> KernelSpec:
    gate = _gate(attrs)
    form = _form(attrs)
    more = (*(("scales",) if form.scaled else ()), *(("bias",) if "up_bias" in dtypes else ()))
    names = ("x", *(("weights",) if gate["scales_input"] else ()), "up", *more)
    constants = {
        "K": sizes.k,
        "ACTIVATION": gate["activation"],
        "SLOPED": gate["slope"] != 1,
        "GATED": bool(gate["gated"]),
        "SQUARED": bool(gate["squared"]),
        "LIMITED": isfinite(gate["limit"]),
        "LIMITS_ACTIVATED": bool(gate["limits_activated"]),
        **form.constants(sizes.hidden),
    }
    numbers = (("slope", "fp32"), ("limit", "fp32"), ("up_offset", "fp32"))
    return _product("experts_up_kernel", sizes, form, (*names, "starts", "order", "inner"), numbers, constants, rows)


def _down(attrs: Mapping[str, Any], sizes: Sizes, dtypes: Mapping[str, str], rows: int) -> KernelSpec:
    form = _form(attrs)
    more = (*(("scales",) if form.scaled else ()), *(("bias",) if "down_bias" in dtypes else ()))
    names = ("inner", *(() if _gate(attrs)["scales_input"] else ("weights",)), "down", *more)
    constants = {"PARTS_STRIDE": sizes.record_bytes // ITEM_BYTES[sizes.dtype], **form.constants(sizes.inner)}
    return _product("experts_down_kernel", sizes, form, (*names, "starts", "order", "parts"), (), constants, rows)


def _product(
    kernel: str,
    sizes: Sizes,
    form: Form,
    names: tuple[str, ...],
    numbers: tuple[tuple[str, str], ...],
    constants: Mapping[str, Constant],
    rows: int,
) -> KernelSpec:
    item = ITEM_BYTES[sizes.dtype]
    matrix = form.dtype(sizes.dtype)
    small = {"weights": "float32", "bias": "float32", "starts": "int32", "order": "int32"}
    kinds = {**small, "up": matrix, "down": matrix}
    columns = (sizes.hidden, sizes.inner)
    wide = all(size * item % 16 == 0 and form.aligns(size, sizes.dtype) for size in columns)
    return KernelSpec(
        kernel=kernel,
        module=MODULE,
        signature=(*((name, POINTERS[kinds.get(name, sizes.dtype)]) for name in names), *numbers),
        constants=(
            *((name, None) for name in ("weights", "scales", "bias") if name not in names),
            ("E", sizes.experts),
            ("E_BLOCK", next_power_of_2(sizes.experts)),
            ("H", sizes.hidden),
            ("INNER", sizes.inner),
            ("ORDER_STRIDE", sizes.record_bytes // 4),
            ("INNER_STRIDE", sizes.record_bytes // item),
            *constants.items(),
            ("ROWS", rows),
            ("COLUMNS", COLUMNS),
            ("DEPTH", form.depth(sizes.dtype)),
        ),
        aligned=tuple(name for name in names if name not in (*small, "scales")) if wide else (),
        num_warps=WARPS[rows],
        num_stages=STAGES,
        later=() if form.scaled else ("scales", *form.constants(sizes.hidden)),
    )


def _sum(attrs: Mapping[str, Any], sizes: Sizes) -> KernelSpec:
    kind, item = POINTERS[sizes.dtype], ITEM_BYTES[sizes.dtype]
    return KernelSpec(
        kernel="experts_sum_kernel",
        module=MODULE,
        signature=(("x", kind), ("index", "*i32"), ("weights", "*fp32"), ("parts", kind), ("y", kind)),
        constants=(
            ("E", sizes.experts),
            ("FIRST", attrs.get("first", 0)),
            ("IDENTITIES", attrs.get("identities", 0)),
            ("K", sizes.k),
            ("H", sizes.hidden),
            ("PARTS_STRIDE", sizes.record_bytes // item),
            ("BLOCK", min(next_power_of_2(sizes.hidden), SUM_BLOCK)),
        ),
        aligned=("x", "parts", "y") if sizes.hidden * item % 16 == 0 else (),
        num_warps=4,
    )
