"""Widens 4-bit integers to 16-bit floats on a GPU, two at a time, by permutations of bits in place of conversions.

A GPU converts integers at a quarter of the rate of its other instructions or less. Here the bits of an integer become
the last bits of a float whose exponent makes them count as ones, and one subtraction takes away the rest. All steps are
exact. Triton's language has no registers of two halves, so the steps are inline PTX; interpret_asm.py runs the same
text in the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

NIBBLES_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 mask, magic, rest, both;
    mov.b32 mask, 0x000F000F;
    mov.b32 magic, 0x64086408;
    mov.b32 rest, 0x64086408;
    lop3.b32 both, $2, mask, magic, 0x6A;
    sub.rn.f16x2 both, both, rest;
    mov.b32 {$0, $1}, both;
}""")
"""lop3 computes (word & mask) ^ magic: value + 8 becomes the last bits of 1024 + value + 8."""
NIBBLES_TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 mask, magic, rest, one, both;
    mov.b32 mask, 0x000F000F;
    mov.b32 magic, 0x43084308;
    mov.b32 rest, 0xC308C308;
    mov.b32 one, 0x3F803F80;
    lop3.b32 both, $2, mask, magic, 0x6A;
    fma.rn.bf16x2 both, both, one, rest;
    mov.b32 {$0, $1}, both;
}""")
"""The same with 128 + value + 8. SM 80 and 89 have no subtraction of two bfloat16."""


@triton.jit
def widen_nibbles(words, kind: tl.constexpr):
    """Returns the signed integers of bits 0 to 3 and 16 to 19 of int32 `words` as `kind`, along a new dimension."""
    if kind == tl.float16:
        low, high = tl.inline_asm_elementwise(
            NIBBLES_TO_FLOAT16, "=h,=h,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=1
        )
    else:
        low, high = tl.inline_asm_elementwise(
            NIBBLES_TO_BFLOAT16, "=h,=h,r", [words], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=1
        )
    return tl.join(low, high)
