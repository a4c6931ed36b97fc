"""The elementwise kernels against their numpy definition, bit for bit against each other; what no program may be."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from support.made_matmul import UNIT, same_bits
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.plugins.elementwise import op
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(_testing.elementwise_table())
]
RUNNABLE = [i for i, (_, _, runnable) in enumerate(_testing.elementwise_table()) if runnable]

PROGRAM = "x0 30.0 div tanh 30.0 mul x1 w mul add x2 0.5 sub x3 maximum minimum"
ROUNDINGS = 8
"""Of one function, relative to its result or, where it subtracts, to its argument."""


def run(index: int, program: str, x: list[np.ndarray], w: np.ndarray | None = None, dtype=np.float32) -> np.ndarray:
    ints, floats = op.encode(program)
    y = np.full(x[0].shape, 7, dtype)
    _testing.run_elementwise(index, struct.pack("<8i", *ints), floats, x, w, y)
    return y


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("index", KERNELS)
@sweep("width", [*range(35), 63, 64, 65, 130])
def test_widths_inputs_and_numbers(index: int, width: int) -> None:
    x, w = [10 * normal(3, width, seed=s) for s in range(4)], normal(width, seed=5)
    (expected,) = op.reference([*x, w], {"program": PROGRAM}, "float32")
    assert np.abs(run(index, PROGRAM, x, w) - expected).max(initial=0) <= ROUNDINGS * UNIT * 100


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("index", KERNELS)
@sweep("offset", [1, 3, 7])
def test_misaligned_rows_in_a_wider_buffer(index: int, offset: int, dtype: type) -> None:
    """Nothing beside the rows is written, and where they lie changes no bit."""
    ints, floats = op.encode(PROGRAM)
    x, w = [10 * normal(3, 37, seed=s) for s in range(4)], normal(37, seed=5)
    wide = [np.pad(part, ((0, 0), (offset, 5)), constant_values=np.nan) for part in x]
    y = np.full((3, offset + 37 + 5), 7, dtype)
    inside = slice(offset, offset + 37)
    moved = np.pad(w, (offset, 0))[offset:]
    rows = [part[:, inside] for part in wide]
    _testing.run_elementwise(index, struct.pack("<8i", *ints), floats, rows, moved, y[:, inside])
    assert same_bits(np.ascontiguousarray(y[:, inside]), run(index, PROGRAM, x, w, dtype=dtype))
    assert (np.delete(y, np.arange(offset, offset + 37), axis=1) == 7).all()


@pytest.mark.parametrize("index", KERNELS)
@pytest.mark.parametrize("word", [*op.UNARY])
def test_functions(index: int, word: str) -> None:
    x = np.concatenate([np.linspace(-20, 20, 40_001), normal(1000), [0.0]]).astype(np.float32)[None]
    x = np.abs(x) + np.float32(1e-3) if "sqrt" in word else x
    (expected,) = op.reference([x], {"program": f"x0 {word}"}, "float32")
    # gelu of a negative number subtracts nearly equal ones: its error is relative to x.
    scale = np.maximum(np.abs(expected), np.abs(x)) if word.startswith("gelu") else np.abs(expected)
    assert (np.abs(run(index, f"x0 {word}", [x]) - expected) <= ROUNDINGS * UNIT * scale + 1e-37).all()


@pytest.mark.parametrize("index", KERNELS)
def test_a_clamp_keeps_what_is_no_number(index: int) -> None:
    """The limits come first in a program (passes/rewriting/elementwise_trees.py)."""
    x = np.array([[np.nan, np.inf, -np.inf, 8.0, -8.0, 1.0] * 4], np.float32)
    wanted = np.array([[np.nan, 7.0, -6.0, 7.0, -6.0, 1.0] * 4], np.float32)
    assert np.array_equal(run(index, "7.0 -6.0 x0 maximum minimum", [x]), wanted, equal_nan=True)


@pytest.mark.parametrize("word", [*op.UNARY, *op.BINARY])
def test_instruction_sets_agree_bit_for_bit(word: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 15, dtype=np.uint32).view(np.float32)
    bits = bits[np.isfinite(bits) & (np.abs(bits) > 2.0**-60) & (np.abs(bits) < 2.0**60)]
    x = np.concatenate([bits, np.linspace(-30, 30, 20_000, dtype=np.float32)])[None]
    program = f"x0 {word}" if word in op.UNARY else f"x0 x1 {word}"
    results = [run(i, program, [x, x[:, ::-1].copy()]) for i in RUNNABLE]
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.parametrize("index", KERNELS)
def test_bfloat16_results(index: int) -> None:
    x = normal(3, 37)
    y = run(index, "x0 silu", [x], dtype=np.uint16)
    assert same_bits(y, to_bfloat16_bits(run(index, "x0 silu", [x])))


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("x0 add", "stack must hold"),
        ("x0 x1", "leave one value"),
        ("x0 sine", "no word 'sine'"),
        ("x0 inf mul", "must be finite"),
        ("x0 1 mul 2 mul 3 mul 4 mul 5 mul", "at most 32 words and 4 numbers"),
        ("x0" + " neg" * 32, "at most 32 words"),
        ("x0 " * 9 + "add " * 8, "stack must hold"),
    ],
)
def test_what_no_kernel_can_run_is_refused(program: str, fault: str) -> None:
    with pytest.raises(GraphError, match=fault):
        op.encode(program)
