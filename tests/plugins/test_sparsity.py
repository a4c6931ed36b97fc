"""2:4 sparsity: which weights are kept, and what is stored of them, against loops that say it one by one."""

from __future__ import annotations

import numpy as np
import pytest

from support.made_quantized import number
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.plugins.quantized_matmul import quantize
from tensorwright.plugins.quantized_matmul.sparsity import compressed, density, expanded, pruned
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits
from tensorwright.runtime import _runtime

FORMATS = ("int8:g32:2:4", "int4:g64:2:4")


def matrix(rows: int, k: int) -> np.ndarray:
    """Small whole numbers, so that equal magnitudes are frequent."""
    return np.random.default_rng([rows, k]).integers(-3, 4, (rows, k)).astype(np.float32)


def kept_by_hand(row: np.ndarray, norms: np.ndarray) -> list[int]:
    """The columns of the two largest |w| * norm of each 4 neighbours, of equal ones the first."""
    columns = []
    for start in range(0, len(row), 4):
        quad = range(start, min(start + 4, len(row)))
        columns += sorted(quad, key=lambda c: (-abs(row[c]) * norms[c], c))[:2]
    return columns


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 31, 64])
@pytest.mark.parametrize("calibrated", [False, True])
def test_two_of_four_are_kept(k: int, calibrated: bool) -> None:
    w = matrix(40, k)
    norms = np.random.default_rng(k).integers(0, 4, k).astype(np.float32) if calibrated else np.ones(k, np.float32)
    got = pruned(w, norms if calibrated else None)
    for row, expected in zip(got, w, strict=True):
        kept = kept_by_hand(expected, norms)
        wanted = np.zeros(k, np.float32)
        wanted[kept] = expected[kept]
        assert row.tolist() == wanted.tolist()
        assert len(kept) == round(density(k) * k)


def test_norms_of_inputs_decide_between_weights() -> None:
    w = np.float32([[4, 3, 2, 1]])
    assert pruned(w).tolist() == [[4, 3, 0, 0]]
    assert pruned(w, np.float32([1, 1, 1, 9])).tolist() == [[4, 0, 0, 1]]


def test_places_and_values_give_the_matrix_back() -> None:
    w = pruned(matrix(24, 64))
    kept, places = compressed(w)
    assert kept.shape == (24, 32)
    assert places.shape == (24, 32)
    assert (places[:, 0::2] < places[:, 1::2]).all()
    assert (expanded(kept, places) == w).all()


def test_three_of_four_cannot_be_compressed() -> None:
    with pytest.raises(ValueError, match="more than 2"):
        compressed(np.float32([[1, 2, 0, 0, 1, 2, 3, 0]]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_packed_matrix_is_the_pruned_one_rounded(name: str) -> None:
    """Equal magnitudes are frequent here, so the packer must take the same ones as the definition."""
    fmt, w = parse_format(name), matrix(40, 100)
    dense = parse_format(name.removesuffix(":2:4"))
    out = np.full(3 * fmt.panel_bytes(100), 0xA5, np.uint8)
    error, weight, finite = _runtime.quantize_panels(number(fmt), fmt.group, w, out)
    assert finite
    got = quantize.dequantized(quantize.unpack(out, fmt, 40, 100), 100)
    assert (got == quantize.dequantized(quantize.quantize_weights(pruned(w), dense), 100)).all()
    assert weight == pytest.approx(float(np.square(w).sum()))
    assert error == pytest.approx(float(np.square(got - w, dtype=float).sum()), rel=1e-5)


def test_a_checkpoint_that_is_2_4_sparse_keeps_its_pattern() -> None:
    """Nothing but the rounding is lost: zeros are the smallest of their neighbours."""
    w = pruned(from_bfloat16_bits(to_bfloat16_bits(np.random.default_rng(1).standard_normal((16, 64)))))
    fmt = parse_format("int8:g32:2:4")
    out = np.zeros(fmt.panel_bytes(64), np.uint8)
    _runtime.quantize_panels(number(fmt), fmt.group, w, out)
    got = quantize.dequantized(quantize.unpack(out, fmt, 16, 64), 64)
    assert (got == quantize.dequantized(quantize.quantize_weights(w, parse_format("int8:g32")), 64)).all()


@pytest.mark.parametrize("place", range(4))
def test_a_weight_that_is_no_number_is_told_even_if_it_is_not_kept(place: int) -> None:
    w = np.ones((16, 64), np.float32)
    w[3, 8:12] = [5, 5, 5, 5]
    w[3, 8 + place] = np.nan
    fmt = parse_format("int4:g64:2:4")
    assert _runtime.quantize_panels(number(fmt), fmt.group, w, np.zeros(fmt.panel_bytes(64), np.uint8))[2] is False
