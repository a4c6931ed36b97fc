"""Weights of the plugin form, byte by byte: what they become is what numpy says, and memory stays near a chunk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.lowered import MemorySource
from tensorwright.builder.emit.onnx import plugin_weights
from tensorwright.builder.emit.onnx.model_file import ModelFile
from tensorwright.builder.emit.onnx.plugin_weights import PluginWeights
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.errors import CheckpointError, LoweringError
from tensorwright.ir.graph import Graph, Value
from tensorwright.ir.weights import Ref
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights
from tensorwright.plugins.rounding import from_bfloat16_bits, round_to, to_bfloat16_bits

N, K = 37, 298
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
STEPS = [pytest.param(1 << 21, id="whole"), pytest.param(1, id="smallest-steps")]
"""Elements of a chunk: all at once, and one group of columns or one row at a time."""


def made_weight(array: np.ndarray) -> tuple[Value, MemorySource]:
    kind = ("float32", array.shape)
    value = Graph("g", "cached").add("weight", (), {"expr": Ref("layers.0.up.weight")}, [kind]).output
    return value, MemorySource({"layers.0.up.weight": array})


def stored(array: np.ndarray, dtype: str, ask: Callable[[PluginWeights, Value], Any], path: Path) -> list[np.ndarray]:
    """The tensors that onnx reads back."""
    value, source = made_weight(array)
    weights = PluginWeights(ModelFile("test", 21), source, dtype)  # type: ignore[arg-type]
    names = ask(weights, value)
    assert ask(weights, value) == names  # asked for again, it is there already
    (path / "model.onnx").write_bytes(weights.model.serialized("data"))
    with (path / "data").open("wb") as file:
        weights.model.write_data(file)
    model = onnx.load(path / "model.onnx")
    assert [t.name for t in model.graph.initializer] == ([names] if isinstance(names, str) else list(names))
    return [numpy_helper.to_array(t) for t in model.graph.initializer]


@pytest.fixture(params=STEPS)
def steps(request, monkeypatch) -> None:
    monkeypatch.setattr(plugin_weights, "_CHUNK_ELEMENTS", request.param)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("bits", [False, True])
def test_matrices(dtype: str, bits: bool, tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)
    w = from_bfloat16_bits(to_bfloat16_bits(w)).reshape(w.shape) if bits else w
    (got,) = stored(to_bfloat16_bits(w) if bits else w, dtype, PluginWeights.matrix, tmp_path)
    assert got.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(got.astype(np.float32), round_to(w, dtype).T)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, "dequantizable") for name in ("int4:g32", "int4:g128", "int8:g64", "fp8")),
        *((name, "words") for name in ("int4:g32", "int4:g64")),
        *((name, "grouped_rows") for name in ("int8:g32", "int8:g128")),
    ],
)
def test_quantized(name: str, form: str, dtype: str, tmp_path: Path) -> None:
    fmt = parse_format(name)
    w = np.random.default_rng(1).standard_normal((N, K)).astype(np.float32)
    w[5] = 0  # as the row of a padding token
    values, scales = stored(w, dtype, lambda weights, value: getattr(weights, form)(value, fmt), tmp_path)
    made = quantize_weights(w, fmt)
    assert scales.dtype == NUMPY[dtype]
    wide = scales.astype(np.float32)
    # [K, N] but for the embedding, and one scale a column in fp8.
    wide = wide if form == "grouped_rows" else wide.T
    assert (wide.reshape(made.scales.shape)[5] == 1).all()
    made.scales[5] = 1
    np.testing.assert_array_equal(wide.reshape(made.scales.shape), round_to(made.scales, dtype))
    if form == "words":
        nibbles = values.view(np.uint32)[:, None] >> np.arange(0, 32, 4, dtype=np.uint32)[:, None] & 15
        assert values.shape == (-(-K // 8), N)
        values = ((nibbles.astype(np.int8) ^ 8) - 8).reshape(-1, N)
    rows = (values if form == "grouped_rows" else values.T).astype(np.float32)
    np.testing.assert_array_equal(rows[:, :K], made.values.reshape(N, -1)[:, :K].astype(np.float32))
    assert not rows[:, K:].any()
    assert np.abs(dequantized(made, K) - w).max() > 0


@pytest.mark.parametrize("ask", ["matrix", "int4:g32", "int8:g32", "fp8"])
def test_memory_stays_near_a_chunk(ask: str) -> None:
    """16 M elements of bfloat16, 34 MB, that take none themselves."""
    value, source = made_weight(np.broadcast_to(np.uint16(0x3F80), (16384, 1024)))
    weights = PluginWeights(ModelFile("test", 21), source, "bfloat16")  # type: ignore[arg-type]
    weights.matrix(value) if ask == "matrix" else weights.dequantizable(value, parse_format(ask))

    class Nowhere(BytesIO):
        def write(self, data: Any) -> int:
            return len(data)

    tracemalloc.start()
    try:
        weights.model.write_data(Nowhere())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 25e6


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    w = np.full((4, 8), 7e4, np.float32)
    with pytest.raises(CheckpointError, match="beyond 65504, which float16 cannot hold"):
        stored(w, "float16", PluginWeights.matrix, tmp_path)
    w[0, 0] = np.inf
    for fmt in (parse_format("int4:g32"), parse_format("fp8")):
        with pytest.raises(CheckpointError, match="infinity or a NaN"):
            stored(w, "float32", lambda weights, value, fmt=fmt: weights.dequantizable(value, fmt), tmp_path)
    constant = Graph("g", "cached").constant(w, "float32", w.shape)
    with pytest.raises(LoweringError, match="must be a weight of the checkpoint"):
        PluginWeights(ModelFile("test", 21), MemorySource({}), "float32").matrix(constant)  # type: ignore[arg-type]
