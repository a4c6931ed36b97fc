"""The two profiles: what a step may hold, by the options; shapes of inputs in them."""

from __future__ import annotations

import pytest

from tensorwright.builder.emit.step_limits import PROMPT_ROWS, make_limits
from tensorwright.builder.emit.tensorrt.profiles import (
    MAX_ELEMENTS,
    input_shapes,
    make_profiles,
)
from tensorwright.engine_format.targets import StepSizes
from tensorwright.engine_format.tensorrt_manifest import KvLayer, Range, page_inputs, step_inputs, symbols
from tensorwright.errors import InvalidOptionError

LAYERS = (KvLayer(0, 2, 8), KvLayer(1, 4, 16), KvLayer(0, 1, 64))


@pytest.mark.parametrize(
    ("given", "limits"),
    [((None, None), (64, 2048)), ((8, None), (8, 2048)), ((4096, None), (4096, 4096)), ((None, 16), (16, 16))],
)
def test_limits_that_are_not_given_fit_those_that_are(given, limits):
    assert make_limits(*given, StepSizes(64, 2048)) == limits


def test_a_step_holds_a_token_of_every_sequence():
    with pytest.raises(InvalidOptionError, match=r"max_num_tokens must be at least max_batch_size.*32 is below 64"):
        make_limits(64, 32, StepSizes(64, 2048))


def make(batch=8, tokens=100):
    return make_profiles(LAYERS, 2, block_size=4, max_seq_len=50, batch=batch, tokens=tokens)


def test_prefill_takes_many_tokens_and_decode_one_per_sequence():
    prefill, decode = make()
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert prefill.symbols["tokens"] == Range(1, 50, 100)
    assert decode.symbols["tokens"] == decode.symbols["seqs"] == decode.symbols["rows"] == Range(1, 4, 8)
    assert prefill.symbols["seqs"] == Range(1, 1, 8)
    assert prefill.symbols["rows"] == Range(1, 1, 8 + PROMPT_ROWS)
    for profile in (prefill, decode):
        assert set(profile.symbols) == set(symbols(2))
        assert profile.symbols["max_blocks.0"].max == 13


def test_pages_are_as_many_as_a_tensor_can_hold():
    prefill, _ = make()
    for group, widest in ((0, 64), (1, 64)):
        most = prefill.symbols[f"pages.{group}"].max
        assert most * widest * 4 <= MAX_ELEMENTS < (most + 1) * widest * 4


def test_one_sequence_is_enough_for_a_profile():
    for profile in make(batch=1, tokens=1):
        assert profile.symbols["tokens"] == Range(1, 1, 1)


def test_every_input_has_three_shapes():
    prefill, decode = make()
    inputs = (*step_inputs(2), *page_inputs(LAYERS, "float16", 4))
    shapes = input_shapes(inputs, prefill)
    assert list(shapes) == [tensor.name for tensor in inputs]
    assert shapes["seq_starts"] == ((2,), (2,), (9,))
    assert shapes["block_tables.1"] == ((1, 1), (1, 13), (8, 13))
    assert shapes["k_pages.1"][0] == (1, 4, 4, 16)
    assert input_shapes(inputs, decode)["token_ids"] == ((1,), (4,), (8,))
