"""Makes the two optimization profiles of an engine: the range and the usual value of each symbolic dimension.

Profile 0, "prefill", takes up to max_num_tokens tokens of prompts and answers in a step. Profile 1, "decode", takes one
token of each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.engine_format.tensorrt_manifest import IoTensor, KvLayer, Profile, Range, resolve
from tensorwright.errors import InvalidOptionError
from tensorwright.options.build import TENSORRT_BATCH_SIZE, TENSORRT_NUM_TOKENS
from tensorwright.options.declare import find
from tensorwright.options.engine import EngineFields

PROMPT_ROWS: int = find(EngineFields, "max_prompt_logprob_rows").default
"""The prompt positions of a step that may have logits, beside one row per sequence."""
MAX_ELEMENTS = 2**31 - 1
"""The most elements of one tensor. It bounds the number of pages of a layer."""


def make_limits(max_batch_size: int | None, max_num_tokens: int | None) -> tuple[int, int]:
    """Returns (sequences, tokens) of a step. Raises InvalidOptionError if a step has fewer tokens than sequences."""
    if max_num_tokens is None:
        max_num_tokens = max(TENSORRT_NUM_TOKENS, max_batch_size or 0)
    if max_batch_size is None:
        max_batch_size = min(TENSORRT_BATCH_SIZE, max_num_tokens)
    if max_batch_size > max_num_tokens:
        raise InvalidOptionError(
            f"max_num_tokens must be at least max_batch_size, a token of every sequence: {max_num_tokens} is below "
            f"{max_batch_size}; raise it (--max-num-tokens) or lower the other"
        )
    return max_batch_size, max_num_tokens


def make_profiles(
    layers: Sequence[KvLayer], groups: int, *, block_size: int, max_seq_len: int, batch: int, tokens: int
) -> tuple[Profile, Profile]:
    """Returns both profiles. Symbols start at 1. rows: one per sequence, in the first profile PROMPT_ROWS more."""
    blocks = -(-max_seq_len // block_size)
    shared = {}
    for group in range(groups):
        widest = max(layer.kv_heads * layer.head_dim for layer in layers if layer.group == group)
        pages = MAX_ELEMENTS // (widest * block_size)
        shared[f"max_blocks.{group}"] = Range(1, blocks, blocks)
        shared[f"pages.{group}"] = Range(1, min(pages, batch * blocks), pages)
    many, few = Range(1, max(1, batch // 2), batch), Range(1, max(1, batch // 8), batch)
    prefill = {"tokens": Range(1, max(1, tokens // 2), tokens), "seqs": few}
    prefill["rows"] = Range(1, few.opt, min(tokens, batch + PROMPT_ROWS))
    decode = {"tokens": many, "seqs": many, "rows": many}
    return Profile("prefill", {**prefill, **shared}), Profile("decode", {**decode, **shared})


def input_shapes(inputs: Sequence[IoTensor], profile: Profile) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Returns {input: (smallest, usual, largest shape)}, the form in which TensorRT takes a profile."""
    bounds = [{name: getattr(r, bound) for name, r in profile.symbols.items()} for bound in ("min", "opt", "max")]
    return {tensor.name: tuple(resolve(tensor.shape, sizes) for sizes in bounds) for tensor in inputs}
