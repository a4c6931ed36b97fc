"""weights.bin holds every weight once, in its layout, at its offset, whatever the chunks."""

from __future__ import annotations

import io

import numpy as np
import pytest

from support.lowered import MemorySource, lowered_graph, small_source
from tensorwright.builder.emit import cpu_weights
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.emit.cpu_weights import ConstantArray, WeightTable
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.engine_format.weight_layouts import BIAS, PANELS, QUANTIZED, RAW, gated
from tensorwright.errors import BuildError, CheckpointError
from tensorwright.ir.weights import Ref
from tensorwright.models.dtypes import bfloat16_bits
from tensorwright.plugins.packing import unpack_panels

RNG = np.random.default_rng(2)
SOURCE = MemorySource(
    {
        "w": RNG.standard_normal((70, 9)).astype(np.float32),
        "half": RNG.standard_normal((20, 4)).astype(np.float16),
        "v": RNG.standard_normal(70).astype(np.float32),
        "experts": RNG.standard_normal((3, 70, 9)).astype(np.float32),
    }
)


def stream(table: WeightTable) -> bytes:
    sink = io.BytesIO()
    table.stream(sink)
    return sink.getvalue()


def stored(table: WeightTable, index: int, data: bytes) -> bytes:
    plan = table.plans[index]
    return data[plan.offset : plan.offset + plan.bytes]


@pytest.fixture(params=[64, 2000, 8 << 20], autouse=True)
def chunk_bytes(request, monkeypatch):
    monkeypatch.setattr(cpu_weights, "_CHUNK_BYTES", request.param)


def test_every_layout():
    table = WeightTable(SOURCE)
    w, v = Ref("w"), Ref("v")
    indices = [
        table.add(w, PANELS, "float32"), table.add(w, PANELS, "bfloat16"), table.add(w, gated(PANELS), "float32"),
        table.add(v, RAW, "float32"), table.add(v, BIAS, "float32"), table.add(v, gated(BIAS), "float32"),
        table.add(w.transpose(), PANELS, "float32"), table.add(Ref("half"), PANELS, "bfloat16"),
    ]  # fmt: skip
    data = stream(table)
    assert len(data) == table.total_bytes
    matrix, vector = SOURCE.arrays["w"], SOURCE.arrays["v"]

    def panels(i, dtype, n, k):
        return unpack_panels(np.frombuffer(stored(table, indices[i], data), np.uint8), dtype, n, k)

    def floats(i):
        return np.frombuffer(stored(table, indices[i], data), np.float32)

    np.testing.assert_array_equal(panels(0, "float32", 70, 9), matrix)
    np.testing.assert_array_equal(panels(1, "bfloat16", 70, 9), bfloat16_bits(matrix))
    pairs = panels(2, "float32", 96, 9).reshape(3, 2, 16, 9)
    np.testing.assert_array_equal(pairs[:, 0].reshape(48, 9)[:35], matrix[:35])
    np.testing.assert_array_equal(pairs[:, 1].reshape(48, 9)[:35], matrix[35:])
    assert not pairs[2, :, 3:].any()
    np.testing.assert_array_equal(floats(3), vector)
    np.testing.assert_array_equal(floats(4), [*vector, *[0] * 10])
    halves = floats(5).reshape(3, 2, 16)
    np.testing.assert_array_equal(halves[:, 0].reshape(48)[:35], vector[:35])
    np.testing.assert_array_equal(halves[:, 1].reshape(48)[:35], vector[35:])
    np.testing.assert_array_equal(panels(6, "float32", 9, 70), matrix.T)
    np.testing.assert_array_equal(panels(7, "bfloat16", 20, 4), bfloat16_bits(SOURCE.arrays["half"].astype(np.float32)))


@pytest.mark.parametrize("layout", [PANELS, gated(PANELS), QUANTIZED.in_format(parse_format("int8"))], ids=str)
def test_the_matrices_of_experts_follow_each_other(layout):
    """Each is stored as it would be alone."""
    stacked, alone = WeightTable(SOURCE), WeightTable(SOURCE)
    stacked.add(Ref("experts"), layout, "float32")
    parts = [Ref("experts").slice(0, i, i + 1).reshape((70, 9)) for i in range(3)]
    single = [alone.add(part, layout, "float32") for part in parts]
    data, apart = stream(stacked), stream(alone)
    assert data == b"".join(stored(alone, i, apart) for i in single)
    (plan,) = stacked.plans
    assert plan.n == 3 * alone.plans[0].n
    assert plan.values == 3 * 70 * 9


def test_the_matrices_of_a_constant_follow_each_other():
    constant = RNG.standard_normal((3, 20, 2)).astype(np.float32)
    table = WeightTable(SOURCE)
    table.add(ConstantArray.of(constant), PANELS, "float32")
    matrices = np.frombuffer(stream(table), np.uint8).reshape(3, -1)
    for matrix, data in zip(constant, matrices, strict=True):
        np.testing.assert_array_equal(unpack_panels(data, "float32", 20, 2), matrix)


def test_shared_by_expression_layout_and_type():
    table = WeightTable(SOURCE)
    first = table.add(Ref("w"), PANELS, "float32")
    assert table.add(Ref("w"), PANELS, "float32") == first
    assert table.add(Ref("w"), PANELS, "bfloat16") != first
    assert table.add(Ref("w").transpose().transpose(), PANELS, "float32") == first
    constant = ConstantArray.of(np.ones(3, np.float32))
    assert table.add(constant, RAW, "float32") == table.add(ConstantArray.of(np.ones(3, np.float32)), RAW, "float32")
    assert len(table.plans) == 3


def test_a_whole_graph():
    plan = emit_cpu_plan(lowered_graph(), small_source())
    done = []
    sink = io.BytesIO()
    plan.weights.stream(sink, lambda *pair: done.append(pair))
    assert len(sink.getvalue()) == plan.weights.total_bytes
    assert done[-1] == (plan.weights.total_bytes, plan.weights.total_bytes)
    assert done == sorted(done)


def test_refusals():
    table = WeightTable(SOURCE)
    with pytest.raises(CheckpointError, match=r'"v" must be of rank 2 .* is \[70\]'):
        table.add(Ref("v"), PANELS, "float32")
    with pytest.raises(CheckpointError, match="as many up rows, has 9"):
        table.add(Ref("w").transpose(), gated(PANELS), "float32")
    with pytest.raises(BuildError, match="must be float32, not int64"):
        ConstantArray.of(np.arange(3))
