"""Weight expressions: their arithmetic equals numpy's, row ranges equal slices, text round-trips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwright.errors import CheckpointError, GraphError
from tensorwright.ir.weights import (
    ChannelScales,
    ColumnOrder,
    Concat,
    Divided,
    Ordered,
    Ref,
    Reshape,
    Scaled,
    Slice,
    Stack,
    Transpose,
    parse_expr,
    scales_of,
    without_scales,
)
from tensorwright.models.dtypes import Tensor, float32_from_bits
from tensorwright.models.read_weights import dtype_of, evaluate, evaluate_rows


class Source:
    """Tensors in memory; remembers what was read."""

    def __init__(self, tensors):
        self.tensors = tensors

    def read(self, name):
        if name not in self.tensors:
            raise CheckpointError(f"no tensor {name!r}")
        array = self.tensors[name]
        return Tensor({"uint16": "bfloat16"}.get(array.dtype.name, array.dtype.name), array)

    def read_part(self, name, ranges):
        return self.read(name).part(ranges)

    def shape(self, name):
        return self.read(name).shape

    def dtype(self, name):
        return self.read(name).dtype


A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.arange(100, 115, dtype=np.float32).reshape(5, 3)
C = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
S = np.array([0.5, 3.0], np.float32)
TURN = np.array([2, 0, 1])
SOURCE = Source(
    {
        "channel_scales.7": S,
        "column_order.b": TURN.astype(np.float32),
        "a": A,
        "b": B,
        "c": C,
        "bf": np.array([0x3F80, 0x4000, 0xC040], np.uint16),
        "f": A[0],
    }
)
a, b, c = Ref("a"), Ref("b"), Ref("c")
s = ChannelScales(7, 2)
order = ColumnOrder("b", 3)
spread = s.reshape([2, 1]).repeat(1, 2).reshape([4])

CASES = [
    (a, A),
    (a.transpose(), A.T),
    (c.transpose(0, 2), C.swapaxes(0, 2)),
    (a.concat([b]), np.concatenate([A, B])),
    (a.concat([b.slice(0, 1, 5)], dim=1), np.concatenate([A, B[1:]], 1)),
    (b.slice(0, 1, 4), B[1:4]),
    (b.slice(1, 1, 2), B[:, 1:2]),
    (b.every(0, 1, 2), B[1::2]),
    (c.transpose(1, 2).every(2, 0, 2), C.swapaxes(1, 2)[..., ::2]),
    (b.slice(1, 1, 2).repeat(1, 4), np.repeat(B[:, 1:2], 4, 1)),
    (Ref("f").slice(0, 2, 3).repeat(0, 5), np.repeat(A[0, 2:3], 5)),
    (a.concat([b]).slice(0, 3, 6), np.concatenate([A, B])[3:6]),
    (a.transpose().concat([b.transpose()], dim=1), np.concatenate([A.T, B.T], 1)),
    (a.stack([b.slice(0, 0, 4)]), np.stack([A, B[:4]])),
    (a.stack(), A[None]),
    (a.reshape([2, 6]), A.reshape(2, 6)),
    (a.reshape([6, 2]).transpose(), A.reshape(6, 2).T),
    (c.reshape([3, 8]), C.reshape(3, 8)),
    (c.transpose(1, 2).reshape([8, 3]), C.swapaxes(1, 2).reshape(8, 3)),
    (a.reshape([12]), A.reshape(12)),
    (s, S),
    (spread, np.repeat(S, 2)),
    (Scaled(c, s, 0), C * S[:, None, None]),
    (Scaled(c, spread, 2), C * np.repeat(S, 2)),
    (Scaled(a.transpose(), spread, 1), A.T * np.repeat(S, 2)),
    (Divided(a, spread, 0), A / np.repeat(S, 2)[:, None]),
    (Divided(b, s, 0, 2), np.concatenate([B[:2], B[2:4] / S[:, None], B[4:]])),
    (Divided(b, s, 1, 1), np.concatenate([B[:, :1], B[:, 1:] / S], 1)),
    (Divided(Ref("f"), s, 0, 0, 1), np.concatenate([(A[0, :2] + 1) / S - 1, A[0, 2:]])),
    (order, TURN.astype(np.float32)),
    (Ordered(b, order, 1), B[:, TURN]),
    (Ordered(a.transpose(), order, 0), A.T[TURN]),
    (Ordered(a.concat([b]), order, 1).slice(0, 2, 7), np.concatenate([A, B])[2:7, TURN]),
    (
        Scaled(Divided(a.concat([b]), s, 0, 6), ChannelScales(7, 2).slice(0, 1, 2).repeat(0, 3), 1),
        np.concatenate([A, B[:2], B[2:4] / S[:, None], B[4:]]) * S[1],
    ),
]


@pytest.mark.parametrize(("expr", "array"), CASES, ids=[str(e) for e, _ in CASES])
def test_evaluates_as_numpy(expr, array):
    assert expr.shape(SOURCE) == array.shape
    assert dtype_of(expr, SOURCE) == "float32"
    np.testing.assert_array_equal(evaluate(expr, SOURCE).data, array)


@pytest.mark.parametrize(("expr", "array"), CASES, ids=[str(e) for e, _ in CASES])
def test_every_row_range(expr, array):
    for start in range(len(array) + 1):
        for end in range(start, len(array) + 1):
            np.testing.assert_array_equal(evaluate_rows(expr, SOURCE, start, end).data, array[start:end])


@pytest.mark.parametrize("expr", [e for e, _ in CASES], ids=str)
def test_text_round_trip(expr):
    assert parse_expr(str(expr)) == expr
    assert hash(parse_expr(str(expr))) == hash(expr)


def test_text_form():
    assert str(a.concat([b])) == 'concat(0, "a", "b")'
    assert str(a.transpose()) == 'transpose("a")'
    assert str(c.transpose(0, 2)) == 'transpose(0, 2, "c")'
    assert str(a.slice(0, 1, 2)) == 'slice(0, 1, 2, "a")'
    assert str(a.reshape([2, 6])) == 'reshape([2, 6], "a")'
    assert str(a.stack([b])) == 'stack("a", "b")'


exprs = st.recursive(
    st.builds(Ref, st.text(min_size=1)),
    lambda inner: st.one_of(
        st.builds(Transpose, inner),
        st.builds(Transpose, inner, st.just(1), st.integers(2, 5)),
        st.builds(Slice, inner, st.integers(0, 3), st.integers(0, 9), st.integers(9, 20)),
        st.builds(Reshape, inner, st.lists(st.integers(0, 9)).map(tuple)),
        st.builds(Concat, st.lists(inner, min_size=1, max_size=3).map(tuple), st.integers(0, 3)),
        st.builds(Stack, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


@given(exprs)
def test_any_expression_round_trips(expr):
    assert parse_expr(str(expr)) == expr


@pytest.mark.parametrize(
    "text",
    ["", "a", '"a', "concat(0)", 'concat("a")', 'transpose("a", "b")', 'transpose(2, 1, "a")', '"a" "b"', "3",
     'slice(0, 1, "a")', 'stack()', 'reshape([2, "a")', 'rot90("a")', 'concat(0, "a"', 'concat(0, "a" "b")', "\x00",
     'reshape([2, "a"], "b")', '"\\q"', 'slice(0, 1, ' + "9" * 5000 + ', "a")', "transpose(" * 5000, "[" * 5000],
)  # fmt: skip
def test_wrong_text(text):
    with pytest.raises(GraphError, match="weight expression"):
        parse_expr(text)


def test_spelling_is_one():
    assert a.transpose().transpose() == a
    assert a.concat([b]).concat([a]) == a.concat([b, a])
    assert a.concat([]) == a
    assert b.slice(0, 1, 5).slice(0, 1, 2) == b.slice(0, 2, 3)
    with pytest.raises(CheckpointError, match="outside"):
        b.slice(0, 1, 3).slice(0, 0, 3)


def test_scales_are_found_and_taken_out():
    other = ChannelScales(8, 4)
    expr = Scaled(Divided(a.concat([b]).slice(0, 1, 5), other, 0, 0, 1), ChannelScales(7, 3), 1).stack(
        [Scaled(b, s, 0)]
    )
    assert [vector.number for vector in scales_of(expr)] == [8, 7, 7]
    assert list(expr.refs()) == ["a", "b", "b"]
    assert without_scales(expr) == a.concat([b]).slice(0, 1, 5).stack([b])
    assert without_scales(expr, frozenset({7})) == Divided(a.concat([b]).slice(0, 1, 5), other, 0, 0, 1).stack([b])
    assert without_scales(expr, frozenset({9})) == expr


@pytest.mark.parametrize("expr", [Scaled(a, s, 0), Scaled(a, s, 2), Divided(a, s, 0, 3), Divided(a, s, 2)], ids=str)
def test_vectors_must_fit(expr):
    with pytest.raises(CheckpointError, match="does not fit"):
        expr.shape(SOURCE)


def test_references_in_order():
    assert list(a.concat([b.transpose(), a]).refs()) == ["a", "b", "a"]


@pytest.mark.parametrize(
    "expr",
    [
        a.concat([c]), a.concat([b], dim=1), a.concat([b], dim=7), a.stack([b]), a.transpose(0, 2), a.slice(0, 2, 9),
        a.slice(0, 3, 2), a.reshape([5, 3]),
    ],
)  # fmt: skip
def test_misfits(expr):
    with pytest.raises(CheckpointError, match="does not fit the checkpoint"):
        expr.shape(SOURCE)


def test_missing_name_and_rows_outside():
    with pytest.raises(CheckpointError, match="'zz'"):
        evaluate(a.concat([Ref("zz")]), SOURCE)
    with pytest.raises(CheckpointError, match="rows"):
        evaluate_rows(a, SOURCE, 2, 5)


def test_mixed_types_widen():
    mixed = Ref("bf").concat([Ref("f")])
    assert dtype_of(mixed, SOURCE) == "float32"
    np.testing.assert_array_equal(evaluate(mixed, SOURCE).data, [1, 2, -3, *A[0]])
    assert dtype_of(Ref("bf").concat([Ref("bf")]), SOURCE) == "bfloat16"
    np.testing.assert_array_equal(float32_from_bits(evaluate(Ref("bf"), SOURCE).data), [1, 2, -3])


def test_a_reference_is_not_copied():
    assert np.shares_memory(evaluate(a, SOURCE).data, A)
    assert np.shares_memory(evaluate_rows(a.concat([b]), SOURCE, 1, 3).data, A)
