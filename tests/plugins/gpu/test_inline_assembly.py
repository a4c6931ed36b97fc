"""Inline PTX that widens integers and small floats, as the interpreter runs it, against plain conversions of all."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu import interpret_asm, unpack
from tensorwright.plugins.paged_attention import gpu_e4m3
from tensorwright.plugins.quantized_matmul import fp8
from tensorwright.plugins.rounding import from_bfloat16_bits


def floats(bits: np.ndarray, dtype: str) -> np.ndarray:
    return from_bfloat16_bits(bits) if dtype == "bfloat16" else bits.view(np.float16).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pair_of_nibbles_is_widened_exactly(dtype: str) -> None:
    text = {"float16": unpack.NIBBLES_TO_FLOAT16, "bfloat16": unpack.NIBBLES_TO_BFLOAT16}[dtype].value
    low, high = np.meshgrid(np.arange(-8, 8), np.arange(-8, 8))
    other = np.random.default_rng(1).integers(0, 2**12, (2, 16, 16), np.uint32) << np.uint32(4)
    words = (low.astype(np.uint32) & 15) | other[0] | ((high.astype(np.uint32) & 15) | other[1]) << np.uint32(16)
    got = interpret_asm.run(text, "=h,=h,r", [words.view(np.int32)], [2, 2], 1)
    np.testing.assert_array_equal(floats(got[0], dtype), low)
    np.testing.assert_array_equal(floats(got[1], dtype), high)
    wrong = interpret_asm.run(text.replace("0x000F000F", "0x000F0007"), "=h,=h,r", [words.view(np.int32)], [2, 2], 1)
    assert (floats(wrong[0], dtype) != low).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_byte_of_e4m3_is_widened_exactly(dtype: str) -> None:
    text = {"float16": gpu_e4m3.TO_FLOAT16, "bfloat16": gpu_e4m3.TO_BFLOAT16}[dtype].value
    codes = np.random.default_rng(1).permutation([code for code in range(256) if code & 0x7F != fp8.NAN] + [0, 0x80])
    codes = codes.astype(np.uint8)
    (got,) = interpret_asm.run(text, "=r,=r,r", [codes.view(np.int8)], [2], 4)
    np.testing.assert_array_equal(floats(got, dtype), fp8.from_codes(codes))
    (wrong,) = interpret_asm.run(text.replace("0xB3A2", "0xA3A2"), "=r,=r,r", [codes.view(np.int8)], [2], 4)
    assert (floats(wrong, dtype) != fp8.from_codes(codes)).any()


@pytest.mark.parametrize(
    ("text", "constraints", "message"),
    [
        ("popc.b32 $0, $1;", "=r,r", "does not know popc"),
        ("mov.b32 $0, other;", "=r,r", "reads other, which nothing has written"),
        ("mov.b32 $0, $1;", "=r,h", "do not fit its operands"),
    ],
)
def test_what_is_not_known_is_refused(text: str, constraints: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        interpret_asm.run(text, constraints, [np.zeros(8, np.int32)], [4], 1)


def test_operands_must_fill_the_registers() -> None:
    with pytest.raises(KernelError, match="4 elements at a time, got 6"):
        interpret_asm.run("mov.b32 $0, $1;", "=r,r", [np.zeros(6, np.int8)], [1], 4)
