"""Computes a program of plugins/elementwise/op.py for each element, in float32, rounded once.

The program is a constant of the kernel: the compiler reads its words, so that nothing is interpreted on the GPU and
numbers are immediate values. Operands are flat: a program takes BLOCK neighbours, 16 bytes of them for each thread.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _word(program, index):
    return program.split(" ")[index]


@triton.constexpr_function
def _count(program):
    return len(program.split(" "))


@triton.constexpr_function
def _number(word):
    return float(word)


@triton.constexpr_function
def _has(words, word):
    return word in words.split(" ")


@triton.jit
def tanh(x):
    """tanh: the odd polynomial of plugins/common/tanh.h near zero, where 1 - 2 / (exp(2x) + 1) would cancel."""
    z = x * x
    p = ((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1
    near = (p * z - 3.33332819422e-1) * z * x + x
    return tl.where(tl.abs(x) < 0.625, near, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def _softplus(x):
    """log(1 + exp(x)): for e = exp(-|x|), log1p(e) = log(u) e / (u - 1) with u = 1 + e as it is rounded."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(x != x, x, tl.maximum(x, 0.0) + log1p)


@triton.jit
def activate(x, WORD: tl.constexpr):
    """Returns the unary word of a program applied to float32 values."""
    if WORD == "neg":
        y = -x
    elif WORD == "abs":
        y = tl.abs(x)
    elif WORD == "square":
        y = x * x
    elif WORD == "sqrt":
        y = tl.sqrt_rn(x)
    elif WORD == "rsqrt":
        y = tl.rsqrt(x)
    elif WORD == "exp":
        y = tl.exp(x)
    elif WORD == "tanh":
        y = tanh(x)
    elif WORD == "sigmoid":
        y = 1.0 / (1.0 + tl.exp(-x))
    elif WORD == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif WORD == "relu":
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif WORD == "gelu_tanh":
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))
    elif WORD == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif WORD == "erf":
        y = tl.erf(x)
    else:
        tl.static_assert(WORD == "softplus", "no kernel computes this word")
        y = _softplus(x)
    return y


@triton.jit
def _push(stack, value):
    return stack + (value,)  # noqa: RUF005 - the language has no unpacking


@triton.jit
def _top(stack):
    return stack[-1]


@triton.jit
def _step(stack, x0, x1, x2, x3, w, WORD: tl.constexpr, UNARY: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the stack after one word. UNARY: the words that `activate` knows."""
    if WORD == "x0":
        stack = _push(stack, x0)
    elif WORD == "x1":
        stack = _push(stack, x1)
    elif WORD == "x2":
        stack = _push(stack, x2)
    elif WORD == "x3":
        stack = _push(stack, x3)
    elif WORD == "w":
        stack = _push(stack, w)
    elif WORD == "add":
        stack = _push(stack[:-2], stack[-2] + stack[-1])
    elif WORD == "sub":
        stack = _push(stack[:-2], stack[-2] - stack[-1])
    elif WORD == "mul":
        stack = _push(stack[:-2], stack[-2] * stack[-1])
    elif WORD == "div":
        stack = _push(stack[:-2], tl.div_rn(stack[-2], stack[-1]))
    elif WORD == "maximum":
        stack = _push(stack[:-2], tl.maximum(stack[-2], stack[-1], propagate_nan=tl.PropagateNan.ALL))
    elif WORD == "minimum":
        stack = _push(stack[:-2], tl.minimum(stack[-2], stack[-1], propagate_nan=tl.PropagateNan.ALL))
    elif _has(UNARY, WORD):
        stack = _push(stack[:-1], activate(stack[-1], WORD))
    else:
        stack = _push(stack, tl.full((BLOCK,), _number(WORD), tl.float32))
    return stack


@triton.jit
def _load(x, at, mask, NAME: tl.constexpr, PER_ROW: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the elements `at` of an operand, which has one value for each row if PER_ROW names it; float32."""
    if x is None:
        value = tl.zeros((BLOCK,), tl.float32)
    elif _has(PER_ROW, NAME):
        value = tl.load(x + at // C, mask=mask, other=0.0).to(tl.float32)
    else:
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def elementwise_kernel(
    x0, x1, x2, x3, w, y, rows,
    PROGRAM: tl.constexpr, UNARY: tl.constexpr, PER_ROW: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes y [rows, C] of x0 .. x3, each [rows, C] or [rows, 1] if PER_ROW names it, and w [C]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < rows.to(tl.int64) * C
    a0 = _load(x0, at, mask, "x0", PER_ROW, C, BLOCK)
    a1 = _load(x1, at, mask, "x1", PER_ROW, C, BLOCK)
    a2 = _load(x2, at, mask, "x2", PER_ROW, C, BLOCK)
    a3 = _load(x3, at, mask, "x3", PER_ROW, C, BLOCK)
    vector = _load(w, at % C, mask, "w", "", C, BLOCK)
    stack = ()
    for index in tl.static_range(_count(PROGRAM)):
        stack = _step(stack, a0, a1, a2, a3, vector, _word(PROGRAM, index), UNARY, BLOCK)
    tl.store(y + at, _top(stack).to(y.dtype.element_ty), mask=mask)
