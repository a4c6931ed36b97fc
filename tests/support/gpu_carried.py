"""Cases of the GPU kernels that carry a state per sequence, in the form of support/gpu_rows.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from support.gpu_rows import DTYPES, Arrays, Case
from tensorwright.ir.state_cache import StateCache
from tensorwright.plugins.causal_conv import carried as conv_op
from tensorwright.plugins.causal_conv import launch as conv
from tensorwright.plugins.delta_rule import carried as delta_op
from tensorwright.plugins.delta_rule import launch as delta
from tensorwright.plugins.linear_attention import carried as linear_op
from tensorwright.plugins.linear_attention import launch as linear
from tensorwright.plugins.rg_lru import carried as lru_op
from tensorwright.plugins.rg_lru import launch as lru
from tensorwright.plugins.selective_scan import carried as selective_op
from tensorwright.plugins.selective_scan import launch as selective
from tensorwright.plugins.state_space_scan import carried as scan_op
from tensorwright.plugins.state_space_scan import launch as scan

SEQUENCES = ((1, 5), (7, 7), (0, 3), (3, 40), (1, 1), (2, 2))
"""Tokens in the step, and positions with them: decodes, a whole prompt, nothing to do, a chunk, first tokens."""
ULPS = 64
"""A token's functions and sums are off by a few spacings of the largest number, and seven tokens follow one another."""


def case(
    name: str,
    launch: ModuleType,
    definition: ModuleType,
    dtype: str,
    rows: Mapping[str, int],
    weights: Mapping[str, np.ndarray],
    attrs: dict[str, Any],
    of_kernels: dict[str, Any],
    state: tuple[int, ...],
    columns: int,
    sequences: Sequence[tuple[int, int]] = SEQUENCES,
) -> Case:
    """rows: the columns of each operand; columns: those of y. The states of a sequence's first token are NaN, for
    nobody may read them, and so is what lies behind each state."""
    rng, tokens, count = np.random.default_rng(len(name)), sum(n for n, _ in sequences), len(sequences)
    size, slots = int(np.prod(state)), rng.permutation(count + 2)[:count]
    numbers = -(-size // 16) * 16 + 16
    states = np.full((count + 2, numbers), np.nan, np.float32)
    for (own, context), slot in zip(sequences, slots, strict=True):
        if context > own:
            states[slot, :size] = rng.standard_normal(size)
    starts = np.cumsum([0, *(n for n, _ in sequences)])
    batch = {"seq_starts": starts, "context_lens": np.array([c for _, c in sequences]), "state_slots": slots}
    inputs: dict[str, tuple[np.ndarray, str]] = {
        **{key: (rng.standard_normal((tokens, width)), dtype) for key, width in rows.items()},
        **{key: (w, "float32") for key, w in weights.items()},
        **{key: (array.astype(np.int32), "int32") for key, array in batch.items()},
        "states": (states.reshape(-1), "float32"),
    }

    def expected(x: Arrays) -> Arrays:
        kept = x["states"].reshape(count + 2, numbers).copy()
        cache = StateCache({int(slot): (kept[slot, :size].reshape(state),) for slot in slots})
        operands = [*(x[key].astype(np.float32) for key in rows), *(x[key] for key in batch), cache]
        y, after = definition.reference([*operands, *(x[key] for key in weights)], {"state": 0, **attrs}, "float32")
        for slot, (array,) in after.slots.items():
            kept[slot, :size] = array.reshape(-1)
        return {"y": y.astype(np.float64), "states": kept.reshape(-1).astype(np.float64)}

    return Case(
        f"{name}-{dtype}",
        launch,
        {**attrs, "slot_numbers": numbers},
        of_kernels,
        inputs,
        {"y": ((tokens, columns), dtype), "states": "states"},
        expected,
        ulps=ULPS,
    )


def _floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def conv_case(dtype: str, channels: int, width: int, activation: str, *, bias: bool, **more: Any) -> Case:
    weights = {"w": _floats(1, width, channels), **({"bias": _floats(2, channels)} if bias else {})}
    return case(
        f"conv-{channels}x{width}-{activation}" + "-bias" * bias, conv, conv_op, dtype, {"x": channels}, weights,
        {"activation": activation}, {"channels": channels, "width": width}, (width - 1, channels), channels, **more,
    )  # fmt: skip


def selective_case(dtype: str, channels: int, states: int) -> Case:
    rows = {"x": channels, "dt": channels, "b": states, "c": states}
    return case(
        f"selective_scan-{channels}x{states}", selective, selective_op, dtype, rows,
        {"w": _floats(3, states + 2, channels)}, {"states": states}, {"channels": channels}, (channels, states),
        channels,
    )  # fmt: skip


def scan_case(dtype: str, heads: int, groups: int, states: int, width: int) -> Case:
    columns = heads * width + 2 * groups * states
    attrs = {"heads": heads, "groups": groups, "states": states, "dt_min": 0.1, "dt_max": 1.5}
    return case(
        f"scan-{heads}-{groups}-{states}x{width}", scan, scan_op, dtype, {"row": columns, "dt": heads},
        {"w": _floats(4, 3, heads)}, attrs, {"columns": columns}, (heads, states, width), heads * width,
    )  # fmt: skip


def linear_case(dtype: str, heads: int, states: int, width: int) -> Case:
    columns = heads * (width + 2 * states)
    return case(
        f"linear_attention-{heads}-{states}x{width}", linear, linear_op, dtype, {"row": columns},
        {"w": np.abs(_floats(5, heads))}, {"heads": heads, "states": states}, {"columns": columns},
        (heads, states, width), heads * width,
    )  # fmt: skip


def delta_case(dtype: str, heads: int, key_heads: int, keys: int, width: int, *, per_key: bool = False) -> Case:
    columns, steps = 2 * key_heads * keys + heads * width, heads * (keys if per_key else 1)
    attrs = {"heads": heads, "key_heads": key_heads, "width": width, "beta_scale": 1.5}
    return case(
        f"delta_rule-{heads}-{key_heads}-{keys}x{width}" + "-per_key" * per_key, delta, delta_op, dtype,
        {"row": columns, "dt": steps, "beta": heads}, {"w": _floats(6, heads)}, attrs,
        {"columns": columns, "steps": steps}, (heads, keys, width), heads * width,
    )  # fmt: skip


def lru_case(dtype: str, channels: int) -> Case:
    rows = {"x": channels, "input": channels, "decay": channels}
    return case(
        f"rg_lru-{channels}", lru, lru_op, dtype, rows, {"w": _floats(7, 3, channels)}, {}, {"channels": channels},
        (channels,), channels,
    )  # fmt: skip


CASES = [
    *(conv_case(dtype, 72, 4, "silu", bias=True) for dtype in DTYPES),
    conv_case("bfloat16", 40, 3, "none", bias=False),
    conv_case("float16", 65, 2, "silu", bias=False),
    conv_case("float16", 16, 4, "silu", bias=True, sequences=((40, 61), (17, 17))),
    conv_case("float16", 16, 4, "silu", bias=True, sequences=()),
    *(selective_case(dtype, 72, 12) for dtype in DTYPES),
    selective_case("bfloat16", 130, 16),
    *(scan_case(dtype, 4, 2, 12, 16) for dtype in DTYPES),
    scan_case("bfloat16", 2, 1, 128, 40),
    *(linear_case(dtype, 3, 16, 24) for dtype in DTYPES),
    *(delta_case(dtype, 4, 2, 12, 8) for dtype in DTYPES),
    delta_case("bfloat16", 2, 2, 128, 40),
    delta_case("float16", 3, 3, 12, 12, per_key=True),
    *(lru_case(dtype, 72) for dtype in DTYPES),
    lru_case("bfloat16", 130),
]
