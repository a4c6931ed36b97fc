"""paged_attention(q, cache, seq_starts, context_lens, block_tables, sinks?, slopes?, prompt_lens?):  attention of a
ragged batch

q: [T, H * D]; sequence s owns tokens seq_starts[s] .. seq_starts[s + 1], which are the last ones of its
context_lens[s] positions; block_tables: [seqs, max_blocks]; sinks and slopes: [H].  Result: [T, H * D].

With the attribute chunked, the window begins at a multiple of its length and does not slide (first_seen). With the
attribute sink_tokens, each query sees the first so many positions of its sequence too, up to its own (StreamingLLM,
Xiao et al. 2024, arXiv 2309.17453). Keys keep the positions that they were rotated for.

With the attributes of a budget (BUDGET), the first position of a step may not see all before it: at each multiple of
`interval` positions of a sequence it was decided which `kept` blocks stay, by the shares of attention that blocks got
in all layers of a cache group (runtime/core/ops/kept_blocks.h). One layer alone does not say which these are, so the
definition here computes what no decision has changed, and refuses the rest.

With the attribute v_dim, the cache is that of latent_kv_write: one row of K for all heads, whose first v_dim columns
are V too. The result is then [T, H * v_dim].

With the attribute sparse_prefill, the queries of a prompt see at most so many positions, which each block of them
chooses (choice.py); prompt_lens: [seqs], how many tokens of each sequence are its prompt.

If the cache is int8 or int4, every head of q is rounded to 15 or 12 bits and a scale (quantize.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.kv_cache import SPARSE_KEPT_BLOCKS
from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, cache, metadata, rows, shared
from tensorwright.plugins.paged_attention.attention import attend, check_vectors, how_of
from tensorwright.plugins.paged_attention.choice import ChoiceRule
from tensorwright.plugins.paged_attention.quantize import QUERY_LEVELS_OF, quantize_heads, restore_heads
from tensorwright.plugins.rounding import round_to

CPU_MAX_HEAD_DIM = 4096
"""Equal to TW_MAX_HEAD_DIM of layout.h: kernels of target cpu keep some rows of q on their stack."""
BUDGET = ("kept", "sinks", "recent", "interval", "scores")
"""The attributes of attention whose cache group forgets blocks: how many stay at a decision, the first and the last
ones that always do, the positions between two decisions, and the number of the state with the scores and 1. An
instruction without a budget has 0 for all."""


def _operands(inputs: list[Any]) -> list[Any]:
    """Returns all operands, None for what the operation lacks."""
    return [*inputs, None, None, None][:8]


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns q's type, and its shape unless V is narrower than K."""
    q, cache, _, context_lens, block_tables, sinks, slopes, prompt_lens = _operands(inputs)
    heads, kv_heads, width = attrs["heads"], attrs["kv_heads"], attrs["heads"] * attrs["head_dim"]
    if q.rank != 2 or q.shape[1] != width or heads % kv_heads:
        raise GraphError(
            f"paged_attention: q must be [tokens, {width}] with {heads} heads a multiple of {kv_heads} KV heads, "
            f"got {list(q.shape)}"
        )
    if cache.dtype != "kv":
        raise GraphError(f"paged_attention: the cache must be a kv state, got {cache.dtype}")
    if block_tables.rank != 2 or block_tables.shape[:1] != context_lens.shape:
        raise GraphError(
            f"paged_attention: context_lens must be [seqs] and block_tables [seqs, max_blocks], "
            f"got {list(context_lens.shape)} and {list(block_tables.shape)}"
        )
    check_vectors("paged_attention", sinks, slopes, heads)
    sparse = attrs.get("sparse_prefill", 0)
    if (sparse > 0) != (prompt_lens is not None):
        raise GraphError(
            f"paged_attention: prompt_lens and sparse_prefill go together, got sparse_prefill {sparse} "
            f"{'without' if prompt_lens is None else 'with'} prompt_lens"
        )
    return [(q.dtype, (q.shape[0], heads * attrs.get("v_dim", attrs["head_dim"])))]


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes attention. The cache operand is a tensorwright.plugins.paged_attention.cache.PagedCache."""
    q, cache, seq_starts, context_lens, block_tables, sinks, slopes, prompt_lens = _operands(inputs)
    _require_undecided(context_lens, attrs, cache.block_size)
    rows = plain = q.reshape(len(q), attrs["heads"], attrs["head_dim"])
    if cache.dtype in QUERY_LEVELS_OF:
        rows = restore_heads(*quantize_heads(rows, QUERY_LEVELS_OF[cache.dtype]))
    y = np.zeros((*rows.shape[:2], cache.v_dim or attrs["head_dim"]), np.float64)
    for seq, length in enumerate(context_lens):
        begin, end = int(seq_starts[seq]), int(seq_starts[seq + 1])
        k, v = cache.read(block_tables[seq], int(length))
        first, how = int(length) - (end - begin), how_of(attrs)
        if attrs.get("sparse_prefill", 0):
            q_dtype = "bfloat16" if cache.dtype == "bfloat16" else act_dtype
            rule = ChoiceRule(attrs["sparse_prefill"], cache.block_size, attrs["scale"], attrs["softcap"], q_dtype)
            how["shown"] = rule.shown(
                plain[begin:end], k, first, int(prompt_lens[seq]), QUERY_LEVELS_OF.get(cache.dtype)
            )
        y[begin:end] = attend(rows[begin:end], k, v, first, **how, sinks=sinks, slopes=slopes)
    return [round_to(y.reshape(len(q), y.shape[1] * y.shape[2]).astype(np.float32), act_dtype)]


def _require_undecided(context_lens: np.ndarray, attrs: dict[str, Any], block_size: int) -> None:
    """Raises GraphError for sequences of which blocks are gone."""
    if attrs.get("kept", 0) == 0 or len(context_lens) == 0:
        return
    longest, most = int(max(context_lens)), attrs["kept"] * block_size
    if longest > most + attrs["interval"]:
        raise GraphError(
            f"paged_attention: of a sequence of {longest} positions some blocks are gone, because it keeps {most} at "
            "each decision; the scores of all layers say which, so no layer is defined alone"
        )


_BATCH = (metadata("seq_starts"), metadata("context_lens"), metadata("block_tables"))
OP = Op(
    "paged_attention",
    operands=(
        rows("q"), cache("cache"), *_BATCH, shared("sinks?", wide=True), shared("slopes?", wide=True),
        metadata("prompt_lens?"),
    ),
    attrs={
        "layer": "int", "heads": "int", "kv_heads": "int", "head_dim": "int", "scale": "float", "window": "int",
        "softcap": "float",
    },
    optional_attrs={
        "v_dim": "int", "chunked": "bool", "sink_tokens": "int", "sparse_prefill": "int", **dict.fromkeys(BUDGET, "int")
    },
    stages=("cached",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
    sums=True,
)  # fmt: skip
INSTRUCTION = Instruction(
    "paged_attention",
    number=6,
    operands=(
        rows("q"),
        cache("cache"),
        *_BATCH,
        shared("sinks?", RAW),
        shared("slopes?", RAW),
        metadata("prompt_lens?"),
    ),
    results=(rows("y", narrow=True),),
    attrs={
        "kv_layer": "int",
        "heads": "int",
        **dict.fromkeys(BUDGET, "int"),
        "sparse_prefill": "int",
        "scale": "float",
        "softcap": "float",
    },
    reference=reference,
    sequence_aware=True,
    sums=True,
    numbers={"kept_blocks": SPARSE_KEPT_BLOCKS},
)
