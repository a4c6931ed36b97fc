"""Makes the launch of route: the k experts of each row, best first, and their weights.

    inputs   logits [T, E], bias [E] and expert_scales [E] float32 (either may be absent)
    outputs  index [T, k] int32, weights [T, k] float32
attrs: those of the op; for `kernels`, which sees no tensor, also `experts` (E). The score "sparsemixer" is refused.
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
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)
from tensorwright.plugins.route.op import DEFAULTS

MODULE = "tensorwright.plugins.route.gpu"
MAX_EXPERTS = 2048
"""The most experts: they stay in the registers of one block of threads."""
MAX_CHOSEN = 64
EXPERTS_OF_A_WARP = 256
SCORES = ("softmax", "sigmoid")


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns one specialisation per numbers of experts, attributes and types."""
    return (_spec(attrs, attrs["experts"], dtypes),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    logits, index, weights = inputs["logits"], outputs["index"], outputs["weights"]
    rows, experts = logits.shape
    require_shape(index, (rows, attrs["k"]), "int32")
    require_shape(weights, (rows, attrs["k"]), "float32")
    for name in ("bias", "expert_scales"):
        if name in inputs:
            require_shape(inputs[name], (experts,), "float32")
    require_dense(*inputs.values(), index, weights)
    spec = _spec(attrs, experts, {name: tensor.dtype for name, tensor in inputs.items()})
    if rows == 0:
        return []
    every = {**DEFAULTS, **attrs}
    numbers = {name: float(every[name]) for name in ("scale", "epsilon", "least")}
    return [make_launch(spec, grid_of(rows), {**inputs, "index": index, "weights": weights, **numbers})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _spec(attrs: Mapping[str, Any], experts: int, dtypes: Mapping[str, str]) -> KernelSpec:
    every = {**DEFAULTS, **attrs}
    score, k, groups = every["score"], every["k"], every["groups"]
    if score not in SCORES:
        raise KernelError(f"route on a GPU: the score must be one of {', '.join(SCORES)}, got {score!r}")
    if not 1 <= k <= min(experts, MAX_CHOSEN) or experts > MAX_EXPERTS or experts % groups:
        raise KernelError(
            f"route on a GPU: of at most {MAX_EXPERTS} experts in equal groups at most {MAX_CHOSEN} are chosen; got "
            f"{experts} experts in {groups} groups, of which {k} are chosen"
        )
    vectors = tuple(name for name in ("bias", "expert_scales") if name in dtypes)
    group_block, block = next_power_of_2(groups), next_power_of_2(experts // groups)
    bare = every["normalise"] and not every["epsilon"] and not every["least"]
    return KernelSpec(
        kernel="route_kernel",
        module=MODULE,
        signature=(
            ("logits", POINTERS[dtypes["logits"]]),
            *((name, "*fp32") for name in vectors),
            ("index", "*i32"),
            ("weights", "*fp32"),
            ("scale", "fp32"),
            ("epsilon", "fp32"),
            ("least", "fp32"),
        ),
        constants=(
            *((name, None) for name in ("bias", "expert_scales") if name not in dtypes),
            ("E", experts),
            ("K", k),
            ("K_BLOCK", next_power_of_2(k)),
            ("GROUPS", groups),
            ("GROUP_BLOCK", group_block),
            ("BLOCK", block),
            ("GROUP_LIMIT", every["group_limit"]),
            ("GROUP_BEST", every["group_best"]),
            ("KEEPS_OTHERS", bool(every["keeps_others"])),
            ("SIGMOID", score == "sigmoid"),
            ("BY_SCORES", bool(every["by_scores"])),
            ("NORMALISE", bool(every["normalise"])),
            ("OF_CHOSEN", bool(bare and score == "softmax")),
        ),
        num_warps=min(max(group_block * block // EXPERTS_OF_A_WARP, 1), 8),
    )
