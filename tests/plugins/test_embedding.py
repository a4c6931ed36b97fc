"""The embedding kernels against their numpy definition, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from support.made_matmul import same_bits, stored, widened
from support.sweep import sweep
from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.embedding import op
from tensorwright.runtime import _testing

pytestmark = pytest.mark.computes

DTYPES = ("float32", "bfloat16")
KERNELS = [
    pytest.param(dtype, i, id=name, marks=[] if runnable else pytest.mark.skip(f"this processor lacks {isa}"))
    for dtype in (0, 1)
    for i, (name, isa, runnable) in enumerate(_testing.embedding_table(dtype))
]


@pytest.mark.parametrize(("dtype", "index"), KERNELS)
class TestDefinition:
    @sweep("scale", [1.0, 29.933259])
    @sweep("width", [*range(1, 36), 63, 64, 65])
    def test_widths(self, dtype: int, index: int, width: int, scale: float) -> None:
        rng = np.random.default_rng(width)
        table = stored(rng.standard_normal((37, width)), dtype)
        ids = np.array([0, 36, 15, 16, 17, 17, 31, 32], np.int32)
        got = np.full((len(ids), width + 3), np.nan, np.float32)
        _testing.run_embedding(dtype, index, ids, _testing.pack_panels(dtype, table), got[:, :width], scale)
        (expected,) = op.reference([widened(table), ids], {"scale": scale}, DTYPES[dtype])
        assert same_bits(got[:, :width], expected)
        assert np.isnan(got[:, width:]).all()

    def test_no_tokens(self, dtype: int, index: int) -> None:
        packed = _testing.pack_panels(dtype, stored(np.ones((1, 4)), dtype))
        _testing.run_embedding(dtype, index, np.zeros(0, np.int32), packed, np.zeros((0, 4), np.float32))


def test_refuses_ids_outside_the_table() -> None:
    packed = _testing.pack_panels(0, np.ones((16, 4), np.float32))
    for bad in (-1, 16):
        with pytest.raises(InvalidOptionError):
            _testing.run_embedding(0, 0, np.array([bad], np.int32), packed, np.zeros((1, 4), np.float32))
