"""The list of a step's decodes: it covers what each sequence sees, in its bounds, by splits of the wanted length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.interpret import Interpreter, Memory
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.paged_attention import work_list
from tensorwright.plugins.paged_attention.attention import first_seen
from tensorwright.plugins.paged_attention.tiles import Attention
from tensorwright.plugins.paged_attention.work_list import ITEM, UNIT, bounds, columns

LLAMA = {"heads": 32, "kv_heads": 8, "head_dim": 128, "scale": 1.0, "window": 0, "softcap": 0.0, "has_sinks": 0,
         "int8_kv": 0, "block_size": 32}  # fmt: skip
LENGTHS = list[tuple[int, int]]
"""(tokens, context) of each sequence."""


def operands(memory: Memory, attrs: dict[str, Any], lengths: LENGTHS, more_blocks: int) -> dict[str, Tensor]:
    tokens, contexts = (np.array(numbers, np.int32) for numbers in zip(*lengths, strict=True))
    width = max(-(-int(context) // attrs["block_size"]) for context in contexts) + more_blocks
    address = memory.put("context_lens", contexts, "int32").address
    shape = (int(tokens.sum()), attrs["heads"] * attrs["head_dim"])
    return {
        "q": Tensor.dense("q", address, shape, "bfloat16"),
        "seq_starts": memory.put("seq_starts", np.append(0, np.cumsum(tokens)), "int32"),
        "context_lens": memory.blocks["context_lens"].tensor,
        "block_tables": Tensor.dense("block_tables", address, (len(lengths), width), "int32"),
    }


def listed(
    runner: Any, attrs: dict[str, Any], lengths: LENGTHS, sm: int = 90, more_blocks: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (items [items, ITEM], (first item, items) of each sequence [seqs, 2])."""
    memory = Memory()
    inputs = operands(memory, attrs, lengths, more_blocks)
    op = Attention.of(attrs, "bfloat16")
    work = memory.empty("work", (len(lengths), columns(op)), "int32")
    launches = work_list.launches(attrs, inputs, {"work": work}, None, sm)
    runner.run(work_list.kernels(attrs, {"q": "bfloat16"}, sm), launches, memory)
    bound = bounds(op, sm, len(lengths), inputs["block_tables"].shape[1])
    flat = memory.array("work").ravel()
    assert (flat[bound.items * ITEM + 2 * len(lengths) :] == -1).all(), "nothing is written behind the list"
    items = flat[: bound.items * ITEM].reshape(-1, ITEM)
    assert (items[:, 5:] == -1).all()
    return items, flat[bound.items * ITEM :][: 2 * len(lengths)].reshape(-1, 2)


def check(items: np.ndarray, ranges: np.ndarray, lengths: LENGTHS, window: int, chunked: bool = False) -> None:
    """The splits of each sequence of one token follow one another and cover what it sees; others have none."""
    token = taken = 0
    for seq, ((tokens, context), (first, count)) in enumerate(zip(lengths, ranges, strict=True)):
        assert first == taken
        if tokens == 1:
            own = items[first : first + count]
            assert (own[:, [0, 1, 4]] == [token, seq, context]).all()
            seen = int(first_seen(np.int64(context - 1), window, chunked))
            assert own[0, 2] == seen // UNIT * UNIT
            assert own[-1, 3] == context
            assert (own[1:, 2] == own[:-1, 3]).all()
            assert len(set(own[:-1, 3] - own[:-1, 2])) <= 1, "all but the last are of one length"
            assert (own[:, 2] % UNIT == 0).all()
        else:
            assert count == 0
        taken += count
        token += tokens
    assert (items[taken:, :5] == 0).all()


def test_a_list_covers_every_step(interpreter: Interpreter) -> None:
    """Random steps, of few and of many sequences, with and without windows and chunks; bounds hold, or items would be
    missing."""
    rng = np.random.default_rng(0)
    for turn in range(8):
        window = (0, 100, 4096, 0)[turn % 4]
        attrs = {**LLAMA, "kv_heads": int(rng.choice([1, 8, 32])), "window": window, "int8_kv": turn % 2,
                 "chunked": window > 0 and turn > 3}  # fmt: skip
        seqs = int(rng.choice([1, 2, 5, 16, 40]))
        contexts = np.maximum((10.0 ** rng.uniform(0, rng.choice([2, 3, 4.5]), seqs)).astype(int), 1)
        lengths = [(int(rng.choice([1, 1, 1, 2, 5])), int(context) + 5) for context in contexts]
        lengths[0] = (1, lengths[0][1])  # a step of one prompt has no list
        items, ranges = listed(interpreter, attrs, lengths, int(rng.choice([80, 90])), int(rng.choice([0, 9])))
        check(items, ranges, lengths, window, attrs["chunked"])


@pytest.mark.parametrize(
    ("contexts", "int8", "splits"),
    [
        ([1024], 0, [64] * 16),
        ([4096], 0, [256] * 16),
        ([4096], 1, [128] * 32),
        ([32768], 0, [512] * 64),
        ([100] * 4, 0, [100] * 4),
        ([600] * 64, 0, [512, 88] * 64),
    ],
)
def test_the_splits_are_those_that_an_h100_liked_best(
    interpreter: Interpreter, contexts: list[int], int8: int, splits: list[int]
) -> None:
    """docs/gpu.md has the times of 8 KV heads of 128."""
    items, _ = listed(interpreter, {**LLAMA, "int8_kv": int8}, [(1, context) for context in contexts])
    assert [end - begin for begin, end in items[:, 2:4] if end > begin] == splits


def test_one_long_sequence_among_short_ones_starts_few_programs(interpreter: Interpreter) -> None:
    """Without a list 65 x 8 x 64 programs would start, of which 1,024 have work."""
    lengths = [(1, 100)] * 64 + [(1, 32768)]
    items, ranges = listed(interpreter, LLAMA, lengths)
    check(items, ranges, lengths, 0)
    assert (items[:, 3] > 0).sum() == 64 + 64
    assert len(items) == 65 + work_list.PROGRAMS // 8


def test_bounds_follow_the_step(interpreter: Interpreter) -> None:
    op = Attention.of(LLAMA, "bfloat16")
    assert bounds(op, 90, 1, 4) == (1, 1, 8)
    assert bounds(op, 90, 1, 32) == (16, 16, 1)
    assert bounds(op, 90, 64, 16) == (64, 1, 8)
    assert bounds(op, 90, 64, 128) == (64 + 256, 8, 8)
    assert work_list.max_partials(op, 90, 64, 128) == 320
    assert work_list.max_partials(op, 90, 64, 8) == 0


def test_operands_are_checked() -> None:
    memory = Memory()
    inputs = operands(memory, LLAMA, [(1, 40), (7, 50)], 0)
    work = memory.empty("work", (2, 7), "int32")
    with pytest.raises(KernelError, match=r"work must be int32 \[2, 514\]"):
        work_list.launches(LLAMA, inputs, {"work": work}, None, 90)


def test_the_numbers_of_both_files_are_one() -> None:
    """gpu_work_list.py needs Triton, so the launches cannot import it."""
    from tensorwright.plugins.paged_attention import gpu_work_list

    assert (gpu_work_list.ITEM.value, gpu_work_list.UNIT.value) == (ITEM, UNIT)
