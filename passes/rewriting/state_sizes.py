"""Says how many float32 numbers an operation keeps of each sequence: the size of its state.

insert_kv_cache needs it for the whole operation, and the passes that share a graph among ranks for a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tensorwright.engine_format.weight_formats import LANES
from tensorwright.ir import Value
from tensorwright.ir.facts import StateLayer

Size = Callable[[Sequence[Value], Value, dict[str, Any]], int]
"""Returns the numbers of one state, from the rows that an operation reads, its first weight, and its attributes."""


def _conv(rows: Sequence[Value], w: Value, attrs: dict[str, Any]) -> int:
    width, channels = map(int, w.shape)
    return max(1, width - 1) * channels


def _scan(rows: Sequence[Value], w: Value, attrs: dict[str, Any]) -> int:
    states = int(attrs["states"])
    return (int(rows[0].shape[-1]) - 2 * int(attrs["groups"]) * states) * states


def _selective_scan(rows: Sequence[Value], w: Value, attrs: dict[str, Any]) -> int:
    channels = int(w.shape[1])
    return (channels + LANES - 1) // LANES * LANES * int(attrs["states"])


def _delta_rule(rows: Sequence[Value], w: Value, attrs: dict[str, Any]) -> int:
    values = int(attrs["heads"]) * int(attrs["width"])
    return values * ((int(rows[0].shape[-1]) - values) // (2 * int(attrs["key_heads"])))


def _linear_attention(rows: Sequence[Value], w: Value, attrs: dict[str, Any]) -> int:
    states = int(attrs["states"])
    return (int(rows[0].shape[-1]) - 2 * int(attrs["heads"]) * states) * states


def _rg_lru(rows: Sequence[Value], w: Value, attrs: dict[str, Any]) -> int:
    return prod(map(int, w.shape[1:]))


SIZES: dict[str, Size] = {
    "carried_conv": _conv,
    "carried_scan": _scan,
    "carried_selective_scan": _selective_scan,
    "carried_delta_rule": _delta_rule,
    "carried_linear_attention": _linear_attention,
    "carried_rg_lru": _rg_lru,
}


def state_layer(op: str, rows: Sequence[Value], w: Value, attrs: dict[str, Any]) -> StateLayer:
    """Returns the state of an operation, whose bytes are rounded up to a multiple of 64.

    rows: the operands that are rows of tokens, with columns as their last dimension. w: the operand behind the state.
    """
    return StateLayer((4 * SIZES[op](rows, w, attrs) + 63) // 64 * 64)
