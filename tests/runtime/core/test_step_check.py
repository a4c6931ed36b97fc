"""Malformed steps: refused with the field, the index and what must hold, and without any effect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.ragged import Ragged
from support.toy_llama import ToyLlama
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert np.array_equal(a.view(np.int32), b.view(np.int32))


BAD_STEPS: dict[str, tuple[dict[str, list], str]] = {
    "token below zero": ({"token_ids": [-1, 5, 6]}, r"token_ids\[0\] is -1; no step is underway"),
    "token over the vocabulary": ({"token_ids": [4, 101, 6]}, r"token_ids\[1\] must be 0 to 100, is 101"),
    "position skipped": ({"positions": [40, 42, 43]}, r"positions\[1\] must be 41"),
    "position over the maximum": ({"positions": [40, 41, 2048]}, r"positions\[2\] must be 0 to 2047"),
    "too few positions": ({"positions": [40, 41]}, "positions must have 3 entries, has 2"),
    "starts not at zero": ({"seq_starts": [1, 3]}, "seq_starts must go from 0"),
    "starts end early": ({"seq_starts": [0, 2]}, "seq_starts must go from 0"),
    "starts too short": ({"seq_starts": [0]}, "seq_starts must have 2 entries"),
    "context too short": ({"context_lens": [2]}, r"context_lens\[0\] must be 3 to 2048"),
    "context too long": ({"context_lens": [2049]}, r"context_lens\[0\] must be 3 to 2048"),
    "context of others": ({"context_lens": [44]}, r"positions\[0\] must be 41"),
    "row out of range": ({"logit_rows": [3]}, r"logit_rows\[0\] must be 0 to 2, is 3"),
    "row below zero": ({"logit_rows": [-1]}, r"logit_rows\[0\]"),
    "too many rows": ({"logit_rows": [0] * 65}, "logit rows must be at most 64"),
    "too many tokens": ({"token_ids": [0] * 65}, "tokens must be at most 64"),
    "no group": ({"groups": []}, "groups must be 1, are 0"),
}


@pytest.fixture
def prefilled(tmp_path: Path) -> Ragged:
    plan, weights = ToyLlama().plan().write(tmp_path)
    run = Ragged(_runtime.CpuExecutor(plan, weights, 2, "map"), 20, max_tokens=64, max_seqs=4)
    run.step([("a", list(range(40)))], rows="none")
    return run


@pytest.mark.parametrize("name", BAD_STEPS)
def test_malformed_steps_are_refused_without_effect(name: str, prefilled: Ragged) -> None:
    change, message = BAD_STEPS[name]
    good = prefilled.arguments([("a", [4, 5, 6])])
    expected = prefilled.executor.step(**good)
    with pytest.raises(InvalidRequestError, match=message):
        prefilled.executor.step(**{**good, **change})
    assert_same_bits(prefilled.executor.step(**good), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table, slots: (table[:, :2], slots), "a context of 43 needs 3 blocks, the block table has 2"),
        (lambda table, slots: (table * 0 - 1, slots), r"block_tables\[0\]\[0\] must be 0 to 19, is -1"),
        (lambda table, slots: (table * 0 + 20, slots), r"block_tables\[0\]\[0\] must be 0 to 19, is 20"),
        (lambda table, slots: (table, [slots[0] + 1, *slots[1:]]), r"slots\[0\] must be"),
        (lambda table, slots: (table, [-5, *slots[1:]]), r"slots\[0\] must be"),
        (lambda table, slots: (table, slots[:2]), "slots must have 3 entries, has 2"),
        (lambda table, slots: (np.concatenate([table, table]), slots), "block_tables must have 1 rows, has 2"),
    ],
)
def test_malformed_tables_are_refused(change, message: str, prefilled: Ragged) -> None:
    good = prefilled.arguments([("a", [4, 5, 6])])
    with pytest.raises(InvalidRequestError, match=message):
        prefilled.executor.step(**{**good, "groups": [change(*good["groups"][0])]})


def test_more_sequences_than_allocated_are_refused(prefilled: Ragged) -> None:
    with pytest.raises(InvalidRequestError, match="sequences must be at most 4, as allocated, are 5"):
        prefilled.step([(name, [1]) for name in "bcdef"])


def test_two_sequences_may_not_write_one_block(prefilled: Ragged) -> None:
    prefilled.tables["b"], prefilled.lengths["b"] = prefilled.tables["a"], 40
    with pytest.raises(InvalidRequestError, match="sequence 1 and sequence 0 both write to block"):
        prefilled.step([("a", [4]), ("b", [5])])


def test_arrays_and_lists_are_the_same_arguments(prefilled: Ragged) -> None:
    good = prefilled.arguments([("a", [4, 5, 6])])
    expected = prefilled.executor.step(**good)
    for dtype in (np.int32, np.int64):
        arrays = {k: np.array(v, dtype) for k, v in good.items() if k != "groups"}
        groups = [(table, np.array(slots, dtype)) for table, slots in good["groups"]]
        assert_same_bits(prefilled.executor.step(**arrays, groups=groups), expected)
    with pytest.raises(TypeError):
        prefilled.executor.step(**{**good, "positions": [40.5, 41.5, 42.5]})
