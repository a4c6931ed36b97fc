"""Rounds float32 to E4M3 and widens E4M3 to the types of tensor cores, on any GPU, by integer operations alone.

Before SM 89 no instruction knows E4M3: 4 bits of exponent with bias 7, 3 of mantissa, no infinity, largest 448. One
code serves all SMs, and its bits are those of plugins/quantized_matmul/fp8.py. The bits of a number, moved to where
another float type has its exponent and mantissa, are the same number times a power of two, since only the bias
differs; subnormal numbers too. Four bytes become four 16-bit floats in eight instructions: for each pair a permutation,
a shift, a mask and a product, which is exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.quantized_matmul.gpu_bytes import widen_bytes

TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 low, high, factor;
    prmt.b32 low, $2, 0, 0x9180;
    prmt.b32 high, $2, 0, 0xB3A2;
    shl.b32 low, low, 7;
    shl.b32 high, high, 7;
    and.b32 low, low, 0xBF80BF80;
    and.b32 high, high, 0xBF80BF80;
    mov.b32 factor, 0x5C005C00;
    mul.rn.f16x2 $0, low, factor;
    mul.rn.f16x2 $1, high, factor;
}""")
"""prmt makes 16 bits of each byte, with its sign in all of the upper ones. The shift puts exponent and mantissa where
float16 has them, and the mask leaves one sign. The factor is 256."""
TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 low, high, factor, zero;
    prmt.b32 low, $2, 0, 0x9180;
    prmt.b32 high, $2, 0, 0xB3A2;
    shl.b32 low, low, 4;
    shl.b32 high, high, 4;
    and.b32 low, low, 0x87F087F0;
    and.b32 high, high, 0x87F087F0;
    mov.b32 factor, 0x7B807B80;
    mov.b32 zero, 0x80008000;
    fma.rn.bf16x2 $0, low, factor, zero;
    fma.rn.bf16x2 $1, high, factor, zero;
}""")
"""The factor is 2^120. SM 80 and 89 have no product of two bfloat16 alone; -0 is what such a sum leaves as it is. SM 75
has neither."""


@triton.jit
def widen_e4m3(codes, kind: tl.constexpr):
    """Returns the E4M3 numbers of bytes, as int8, exactly, in the float type `kind`. No byte may be that of NaN."""
    if kind == tl.float16:
        value = tl.inline_asm_elementwise(TO_FLOAT16, "=r,=r,r", [codes], dtype=tl.float16, is_pure=True, pack=4)
    elif kind == tl.bfloat16:
        value = tl.inline_asm_elementwise(TO_BFLOAT16, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4)
    else:
        value = widen_bytes(codes, True, kind) * 256.0
    return value


@triton.jit
def to_e4m3(x):
    """Rounds finite float32 to the bytes, as int8, of the nearest E4M3 numbers, ties to even; what is beyond 448
    becomes 448. Kernels that use it must be compiled without contraction."""
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    # 20 of 23 bits of mantissa are rounded away. A carry goes into the exponent, whose bias is smaller by 120.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    # Below 2^-6 the numbers are multiples of 2^-9, which is the last bit of a sum with 2^14.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, small, normal)
    return (code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.int8)
