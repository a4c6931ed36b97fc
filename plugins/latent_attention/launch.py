"""Makes the launches of latent_kv_write.

    inputs   q_latent [T, H L], q [T, H S], kv [T, L + P], table [T, P] float32 (absent if nothing rotates), slots [T]
             int32, k_pages [blocks, 1, block_size, L + P]
    outputs  y [T, H (L + P)]; k_pages: the same memory as the input
attrs: heads (H), head_dim (L + P), v_dim (L); for `kernels`, which sees no tensor, also `q_columns` (S). All but the
table and the slots are of one type. A token whose slot is negative is not written to the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    aligns_rows,
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)

MODULE = "tensorwright.plugins.latent_attention.gpu"
MAX_COLUMNS = 2048


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    return (_spec(attrs, dtypes["kv"], "table" in dtypes),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens."""
    _check(attrs, inputs, outputs)
    tokens = inputs["kv"].shape[0]
    if tokens == 0:
        return []
    spec = _spec(attrs, inputs["kv"].dtype, "table" in inputs)
    values = {**inputs, "y": outputs["y"]}
    grid = grid_of(tokens, attrs["heads"] + 1)
    return [make_launch(spec, grid, {name: values[name] for name, _ in spec.signature})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _check(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    heads, head_dim, latent = attrs["heads"], attrs["head_dim"], attrs["v_dim"]
    kv, pages = inputs["kv"], inputs["k_pages"]
    tokens, dtype = kv.shape[0], kv.dtype
    require_shape(kv, (tokens, head_dim), dtype)
    require_shape(inputs["q_latent"], (tokens, heads * latent), dtype)
    require_shape(inputs["q"], (tokens, heads * attrs["q_columns"]), dtype)
    require_shape(inputs["slots"], (tokens,), "int32")
    if "table" in inputs:
        require_shape(inputs["table"], (tokens, head_dim - latent), "float32")
    require_shape(pages, (pages.shape[0], 1, pages.shape[2], head_dim), dtype)
    require_shape(outputs["y"], (tokens, heads * head_dim), dtype)
    if outputs["k_pages"].address != pages.address:
        raise KernelError("latent_kv_write writes k_pages in place: the output must have the input's address")
    require_dense(*inputs.values(), outputs["y"])


def _spec(attrs: Mapping[str, Any], dtype: str, rotates: bool) -> KernelSpec:
    heads, head_dim, latent, columns = (attrs[name] for name in ("heads", "head_dim", "v_dim", "q_columns"))
    rest = head_dim - latent
    fits = heads >= 1 and 1 <= latent <= head_dim <= MAX_COLUMNS and rest <= columns
    if not fits or (rotates and rest % 2):
        raise KernelError(
            f"latent_kv_write: a row must have 1 to {MAX_COLUMNS} columns, of which an even number rotates that q has "
            f"too; got {head_dim} columns, {latent} of them latent, and {columns} columns of a head of q"
        )
    kind = POINTERS[dtype]
    table = (("table", "*fp32"),) if rotates else ()
    tensors = (("q_latent", kind), ("q", kind), ("kv", kind), *table, ("slots", "*i32"), ("y", kind), ("k_pages", kind))
    wide = all(aligns_rows(size, dtype) for size in (latent, head_dim, columns))
    return KernelSpec(
        kernel="latent_kv_write_kernel",
        module=MODULE,
        signature=tensors,
        constants=(
            *(() if rotates else (("table", None),)),
            ("H", heads),
            ("S", columns),
            ("L", latent),
            ("P", rest),
            ("ROTATES", rotates),
            ("L_BLOCK", next_power_of_2(latent)),
            ("P_BLOCK", next_power_of_2(rest // 2 if rotates else rest)),
        ),
        aligned=tuple(name for name, _ in tensors if name != "slots") if wide else (),
        num_warps=4,
        fp_fusion=False,
    )
