"""Makes the two optimization profiles of an engine: the range and the usual value of each symbolic dimension.

Profile 0, "prefill", takes up to max_num_tokens tokens of prompts and answers in a step. Profile 1, "decode", takes one
token of each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.builder.emit.step_limits import max_rows
from tensorwright.engine_format.tensorrt_manifest import IoTensor, KvLayer, Profile, Range, resolve

MAX_ELEMENTS = 2**31 - 1
"""The most elements of one tensor. It bounds the number of pages of a layer."""


def make_profiles(
    layers: Sequence[KvLayer], groups: int, *, block_size: int, max_seq_len: int, batch: int, tokens: int
) -> tuple[Profile, Profile]:
    """Returns both profiles. Symbols start at 1. rows: one per sequence, in the first profile more (step_limits.py)."""
    blocks = -(-max_seq_len // block_size)
    shared = {}
    for group in range(groups):
        widest = max(layer.kv_heads * layer.head_dim for layer in layers if layer.group == group)
        pages = MAX_ELEMENTS // (widest * block_size)
        shared[f"max_blocks.{group}"] = Range(1, blocks, blocks)
        shared[f"pages.{group}"] = Range(1, min(pages, batch * blocks), pages)
    many, few = Range(1, max(1, batch // 2), batch), Range(1, max(1, batch // 8), batch)
    prefill = {"tokens": Range(1, max(1, tokens // 2), tokens), "seqs": few}
    prefill["rows"] = Range(1, few.opt, max_rows(batch, tokens))
    decode = {"tokens": many, "seqs": many, "rows": many}
    return Profile("prefill", {**prefill, **shared}), Profile("decode", {**decode, **shared})


def input_shapes(inputs: Sequence[IoTensor], profile: Profile) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Returns {input: (smallest, usual, largest shape)}, the form in which TensorRT takes a profile."""
    bounds = [{name: getattr(r, bound) for name, r in profile.symbols.items()} for bound in ("min", "opt", "max")]
    return {tensor.name: tuple(resolve(tensor.shape, sizes) for sizes in bounds) for tensor in inputs}
