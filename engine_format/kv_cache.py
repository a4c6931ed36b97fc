"""Lists the types of the KV cache that a build can be asked for, and says how much of a sequence it holds."""

from __future__ import annotations

import math

AS_ACTIVATIONS = "auto"
"""The type of the activations. It is the default."""
KV_CACHE_DTYPES = (AS_ACTIVATIONS, "int8", "int4", "fp8")
"""The value "int8" is 8 bits with a scale for each token and head, and so is "fp8", whose numbers are E4M3; only
targets of GPUs have it. The value "int4" is 4 bits with a scale and an offset for each token and 64 dimensions of a
head; only target cpu has it."""
SCALED_BYTES = ("int8", "fp8")
"""The types of one byte, with a float32 scale for each token and head beside K and beside V."""
_INT4_GROUP = 64
CPU_BLOCK = 32
"""The positions in a block of the KV cache of target cpu. Queries of sparse prefill choose such blocks."""
SPARSE_KEPT_BLOCKS = 3
"""The blocks that such queries see without choosing them: the first, the one before their own, and their own."""
DECISION_INTERVAL = 128
"""How many positions lie between two decisions about what a sequence keeps, where a build gives it a kv_budget."""


def page_dtype(dtype: str) -> str:
    """Returns the element type of the page tensors of a cache on GPUs. dtype: of SCALED_BYTES, or of activations."""
    return "int8" if dtype in SCALED_BYTES else dtype


def quantized_bits(dtype: str, head_dim: int) -> float | None:
    """Returns the bits of a number of a quantized cache, with its share of scales and offsets. None for a type of
    activations. head_dim: the numbers of a head, which share a scale of int8 and of fp8."""
    groups = {**dict.fromkeys(SCALED_BYTES, 1), "int4": math.ceil(head_dim / _INT4_GROUP)}
    return None if dtype not in groups else (4 if dtype == "int4" else 8) + 32 * groups[dtype] / head_dim


def most_held(max_seq_len: int, kv_budget: int | None) -> int:
    """Returns the most positions whose blocks a sequence holds. kv_budget: how many it keeps at each decision; None
    means all."""
    return max_seq_len if kv_budget is None else min(max_seq_len, kv_budget + DECISION_INTERVAL)


def step_end(begin: int, end: int, stop: int) -> int:
    """Returns where a step that computes positions from `begin` on, up to `end`, must end. stop: no step crosses a
    multiple of this position, where blocks of a sequence are forgotten; 0 means there is none."""
    return end if stop == 0 else min(end, (begin // stop + 1) * stop)
