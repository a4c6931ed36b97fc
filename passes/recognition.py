"""Lists the passes of one sequence in order, in phases: from the traced graph to recognised and fused ops.

pipeline.py has the passes after these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tensorwright.ir import Graph
from tensorwright.passes.canonicalise_casts import canonicalise_casts
from tensorwright.passes.canonicalise_linears import canonicalise_linears
from tensorwright.passes.canonicalise_masks import canonicalise_masks
from tensorwright.passes.canonicalise_products import canonicalise_products
from tensorwright.passes.canonicalise_recurrences import canonicalise_recurrences, has_recurrences
from tensorwright.passes.canonicalise_rows import canonicalise_rows
from tensorwright.passes.canonicalise_scalars import canonicalise_scalars
from tensorwright.passes.canonicalise_shapes import canonicalise_shapes
from tensorwright.passes.eliminate_dead_nodes import eliminate_dead_nodes
from tensorwright.passes.flatten_head_gates import flatten_head_gates
from tensorwright.passes.fold_constants import fold_constants
from tensorwright.passes.fold_token_maps import fold_token_maps
from tensorwright.passes.fuse_add_layer_norm import fuse_add_layer_norm
from tensorwright.passes.fuse_add_rms_norm import fuse_add_rms_norm
from tensorwright.passes.fuse_gate_up import fuse_gate_up
from tensorwright.passes.fuse_head_norms import fuse_head_norms
from tensorwright.passes.fuse_latent_attention import fuse_latent_attention
from tensorwright.passes.fuse_qkv import fuse_qkv
from tensorwright.passes.fuse_swiglu import fuse_swiglu
from tensorwright.passes.join_linears import join_linears
from tensorwright.passes.join_qkv import join_qkv
from tensorwright.passes.merge_common_subexpressions import merge_common_subexpressions
from tensorwright.passes.move_norms_before_rotary import move_norms_before_rotary
from tensorwright.passes.move_query_scale import move_query_scale
from tensorwright.passes.permute_rotary_rows import permute_rotary_rows
from tensorwright.passes.recognise_alibi import recognise_alibi
from tensorwright.passes.recognise_attention import recognise_attention
from tensorwright.passes.recognise_gated_expert import recognise_gated_expert
from tensorwright.passes.recognise_gelu import recognise_gelu
from tensorwright.passes.recognise_interleaved_rotary import recognise_interleaved_rotary
from tensorwright.passes.recognise_layer_norm import recognise_layer_norm
from tensorwright.passes.recognise_masks import recognise_masks
from tensorwright.passes.recognise_query_growth import recognise_query_growth
from tensorwright.passes.recognise_rms_norm import recognise_rms_norm
from tensorwright.passes.recognise_rotary import recognise_rotary
from tensorwright.passes.recognise_router import recognise_router
from tensorwright.passes.recognise_xielu import recognise_xielu
from tensorwright.passes.repeat_scalar_weights import repeat_scalar_weights
from tensorwright.passes.rewrite_gqa import rewrite_gqa
from tensorwright.passes.shift_position_tables import shift_position_tables
from tensorwright.passes.split_interleaved_linears import split_interleaved_linears
from tensorwright.passes.split_layer_inputs import split_layer_inputs
from tensorwright.passes.split_linears import split_linears
from tensorwright.passes.unflatten_heads import has_heads_to_unflatten, unflatten_heads
from tensorwright.passes.widen_activations import widen_activations


@dataclass(frozen=True)
class Step:
    """One pass, and why it is here. `after`, `before`: passes that must run at least once earlier, or later.

    `lossy`: whether the numbers change by design, so that --verify reports the change instead of bounding it.
    `only_if`: whether a graph has what the pass is for; on others it does not run.
    """

    run: Callable[[Graph], int]
    why: str
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    lossy: Literal["never", "bfloat16", "always"] = "never"
    only_if: Callable[[Graph], bool] = lambda graph: True

    @property
    def name(self) -> str:
        return self.run.__name__


@dataclass(frozen=True)
class Phase:
    """Passes that leave the graph at `stage`. The first one may take the graph at the stage before."""

    name: str
    stage: str
    steps: tuple[Step, ...]


RECOGNITION: tuple[Phase, ...] = (
    Phase("canonicalise", "traced", (
        Step(widen_activations, "one type for activations, so that every pattern is written once", lossy="bfloat16"),
        Step(canonicalise_casts, "widening leaves casts that change nothing", after=("widen_activations",)),
        Step(canonicalise_scalars, "squares, scales and shifts have one spelling"),
        Step(canonicalise_linears, "products with stored matrices are linears of [1, S, C]"),
        Step(canonicalise_shapes, "unsqueeze, squeeze and view are one op; no-ops are gone"),
        Step(canonicalise_products, "products of heads have the batch again", after=("canonicalise_shapes",),
             before=("canonicalise_shapes",)),
        Step(canonicalise_shapes, "views before and behind products meet", after=("canonicalise_products",)),
        Step(canonicalise_masks, "what is added to scores is one value", after=("canonicalise_products",),
             before=("recognise_alibi", "recognise_masks")),
        Step(fold_constants, "viewed frequencies and offsets become plain constants", after=("canonicalise_shapes",)),
        Step(merge_common_subexpressions, "patterns compare operands by identity; tied weights become one"),
        Step(eliminate_dead_nodes, "a dead user would make an inner value look shared"),
    )),
    Phase("recognise", "fused", (
        Step(canonicalise_recurrences, "their weights become operands, their transposes meet",
             after=("canonicalise_shapes",), before=("canonicalise_shapes",), only_if=has_recurrences),
        Step(recognise_rms_norm, "one op in place of five", after=("canonicalise_scalars",)),
        Step(unflatten_heads, "norms of heads are of whole rows again", after=("recognise_rms_norm",),
             before=("canonicalise_shapes",), only_if=has_heads_to_unflatten),
        Step(split_layer_inputs, "kernels read whole rows", after=("recognise_rms_norm",)),
        Step(recognise_gelu, "one op in place of eight", after=("canonicalise_scalars",)),
        Step(recognise_router, "one op chooses experts, and its rows have the batch again",
             after=("canonicalise_linears",), before=("canonicalise_shapes",)),
        Step(recognise_xielu, "its numbers become vectors", before=("repeat_scalar_weights",)),
        Step(repeat_scalar_weights, "kernels multiply by vectors", after=("recognise_rms_norm",)),
        Step(fuse_head_norms, "heads with a norm each are one row again", before=("fuse_qkv",)),
        Step(recognise_layer_norm, "a mean taken off before a norm", after=("recognise_rms_norm",)),
        Step(recognise_rotary, "needs constant frequencies", after=("fold_constants",)),
        Step(recognise_interleaved_rotary, "the kernels know halves, not neighbours", after=("fold_constants",)),
        Step(recognise_alibi, "what differs from head to head is no mask", after=("fold_constants",),
             before=("recognise_masks",)),
        Step(recognise_masks, "attention accepts only masks that were understood", before=("recognise_attention",)),
        Step(recognise_attention, "softmax between two matmuls", after=("recognise_masks",)),
        Step(canonicalise_rows, "rows beside experts have the batch again", after=("recognise_router",)),
        Step(canonicalise_shapes, "transposes of recognised ops meet and cancel", after=("recognise_attention",)),
        Step(recognise_query_growth, "a table of positions takes the place of its arithmetic",
             after=("recognise_attention",), before=("canonicalise_shapes", "fuse_qkv")),
        Step(fuse_latent_attention, "K and V of one latent row need no rows of their own",
             after=("recognise_attention", "recognise_interleaved_rotary"), before=("split_interleaved_linears",)),
        Step(rewrite_gqa, "repeated heads are only visible as operands of attention", after=("recognise_attention",)),
        Step(canonicalise_shapes, "the repeat is gone, its transposes cancel", after=("rewrite_gqa",)),
        Step(split_interleaved_linears, "what is left of slices of heads is q, k and v", after=("recognise_rotary",),
             before=("fuse_qkv",)),
        Step(shift_position_tables, "a table is read by positions, not by sums", before=("canonicalise_shapes",)),
        Step(canonicalise_shapes, "views and transposes meet again", after=("split_interleaved_linears",)),
        Step(merge_common_subexpressions, "every rotary made its own table", after=("recognise_rotary",)),
        Step(move_query_scale, "q must be a plain row to be fused", after=("recognise_attention",),
             before=("fuse_qkv",)),
        Step(fold_token_maps, "a table is read by tokens, not by functions of them", before=("insert_kv_cache",)),
        Step(flatten_head_gates, "the gates of heads are of whole rows", after=("recognise_attention",),
             before=("insert_kv_cache",)),
        Step(move_norms_before_rotary, "the write of the cache rotates last", after=("merge_common_subexpressions",),
             before=("fuse_qkv",)),
    )),
    Phase("fuse", "fused", (
        Step(canonicalise_shapes, "views of rows meet", after=("flatten_head_gates",)),
        Step(permute_rotary_rows, "q and k must be plain linears to be fused", after=("rewrite_gqa",),
             before=("fuse_qkv",)),
        Step(fuse_qkv, "one matmul reads the input once", after=("rewrite_gqa",), before=("insert_kv_cache",)),
        Step(join_qkv, "what no one linear makes is side by side for the cache too", after=("fuse_qkv",),
             before=("insert_kv_cache",)),
        Step(fuse_gate_up, "one matmul reads the input once", before=("fuse_swiglu",)),
        Step(fuse_swiglu, "the epilogue of the fused matmul", after=("fuse_gate_up",)),
        Step(recognise_gated_expert, "its two products and its gate are one op", after=("fuse_swiglu",)),
        Step(fuse_add_rms_norm, "one pass over the residual stream", after=("recognise_rms_norm",)),
        Step(fuse_add_layer_norm, "the same, for families with that norm"),
        Step(join_linears, "what was side by side is joined in another order", after=("split_interleaved_linears",),
             only_if=has_recurrences),
        Step(split_linears, "kernels read whole rows", after=("fuse_qkv",), before=("insert_kv_cache",)),
    )),
)  # fmt: skip
