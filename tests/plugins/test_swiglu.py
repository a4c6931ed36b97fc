"""The swiglu kernels against their numpy definition, and the exponential that every kernel shares."""

from __future__ import annotations

import numpy as np
import pytest

from support.made_matmul import BFLOAT16_UNIT, UNIT, gate_rounding, same_bits, widened
from support.sweep import sweep
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.rounding import to_bfloat16_bits
from tensorwright.plugins.swiglu import op
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

KERNELS = [
    pytest.param(i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for i, (name, isa, runnable) in enumerate(_testing.swiglu_table())
]
RUNNABLE = [i for i, (_, _, runnable) in enumerate(_testing.swiglu_table()) if runnable]
SILU_ROUNDINGS = 8
"""exp (below 2), its argument, the sum, the division, the product, and room for none of them being exact."""


SILU = {"activation": "silu"}


def run(index: int, x: np.ndarray, y_dtype: int = 0, activation: str = "silu") -> np.ndarray:
    rows, width = x.shape[0], x.shape[1] // 2
    y = np.full((rows, width + 2), 0x7FC0 if y_dtype else np.nan, (np.float32, np.uint16)[y_dtype])
    _testing.run_swiglu(index, x, y[:, :width], op.ACTIVATIONS.index(activation))
    assert np.isnan(widened(y[:, width:])).all()
    return np.ascontiguousarray(y[:, :width])


@pytest.mark.parametrize("index", KERNELS)
class TestDefinition:
    @sweep("width", [*range(1, 35), 100])
    def test_widths(self, index: int, width: int) -> None:
        x = (8 * np.random.default_rng(width).standard_normal((3, 2 * width))).astype(np.float32)
        (expected,) = op.reference([x], SILU, "float32")
        assert (np.abs(run(index, x) - expected) <= SILU_ROUNDINGS * UNIT * np.abs(expected)).all()

    def test_every_size_of_gate(self, index: int) -> None:
        """From where exp overflows to where it vanishes."""
        gate = np.linspace(-87.0, 100.0, 200_001, dtype=np.float32)
        x = np.concatenate([gate, np.ones_like(gate)])[None]
        (expected,) = op.reference([x], SILU, "float32")
        assert (np.abs(run(index, x) - expected) <= SILU_ROUNDINGS * UNIT * np.abs(expected)).all()

    def test_extremes(self, index: int) -> None:
        gate = np.array([0.0, -0.0, -88.8, -1e4, 1e4, -np.inf, np.inf, np.nan], np.float32)
        y = run(index, np.concatenate([gate, np.ones_like(gate)])[None])[0]
        assert same_bits(y[:5], np.array([0.0, -0.0, -0.0, -0.0, 1e4], np.float32))
        assert np.isnan(y[5])  # -inf / inf, as the definition has it
        assert y[6] == np.inf
        assert np.isnan(y[7])

    def test_bfloat16(self, index: int) -> None:
        x = np.random.default_rng(0).standard_normal((4, 74)).astype(np.float32)
        y = run(index, x, y_dtype=1)
        assert same_bits(y, to_bfloat16_bits(run(index, x)))
        (expected,) = op.reference([x], SILU, "float32")
        assert (np.abs(widened(y) - expected) <= (BFLOAT16_UNIT + SILU_ROUNDINGS * UNIT) * np.abs(expected)).all()


@pytest.mark.parametrize("index", KERNELS)
@pytest.mark.parametrize("activation", op.ACTIVATIONS)
class TestActivations:
    @sweep("width", [*range(1, 35), 100])
    def test_widths(self, index: int, activation: str, width: int) -> None:
        x = (4 * np.random.default_rng(width).standard_normal((3, 2 * width))).astype(np.float32)
        self.check(x, run(index, x, activation=activation), activation)

    def test_every_size_of_gate(self, index: int, activation: str) -> None:
        gate = np.linspace(-87.0, 100.0, 200_001, dtype=np.float32)
        x = np.concatenate([gate, np.ones_like(gate)])[None]
        self.check(x, run(index, x, activation=activation), activation)

    def check(self, x: np.ndarray, y: np.ndarray, activation: str) -> None:
        gate, up = np.split(x, 2, axis=-1)
        act = np.abs(op.gated(np.concatenate([gate, np.ones_like(gate)], axis=-1), activation))
        (expected,) = op.reference([x], {"activation": activation}, "float32")
        bound = gate_rounding(gate, act, activation) * np.abs(up) + UNIT * np.abs(expected)
        assert (np.abs(y - expected) <= bound).all()


@pytest.mark.parametrize("activation", op.ACTIVATIONS)
def test_instruction_sets_agree_bit_for_bit(activation: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 16, dtype=np.uint32)
    gate = bits.view(np.float32)
    gate = gate[np.isfinite(gate) & (np.abs(gate) > 2.0**-126)]
    gate = np.concatenate([gate, np.linspace(-90, 90, 70_000, dtype=np.float32)])
    x = np.concatenate([gate, np.ones_like(gate)])[None]
    results = [run(i, x, activation=activation) for i in RUNNABLE]
    assert all(same_bits(r, results[0]) for r in results)


def test_type_of_the_result() -> None:
    assert op.infer([Value("x", "float32", ("tokens", 8))], SILU) == [("float32", ("tokens", 4))]
    with pytest.raises(GraphError, match="even"):
        op.infer([Value("x", "float32", ("tokens", 7))], SILU)
    with pytest.raises(GraphError, match="activation must be one of silu"):
        op.infer([Value("x", "float32", ("tokens", 8))], {"activation": "tanh"})
