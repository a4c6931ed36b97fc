"""head_products: against the numpy definition, and that a row's bits depend neither on other rows nor on threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.isa_levels import PRESENT
from support.made_head_products import MadeHeadProducts
from support.made_matmul import UNIT, same_bits
from support.plan_writer import BF16, F32
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.head_products import op

pytestmark = pytest.mark.computes

FORMATS = ["", "int8", "int4", "uint8", "mxfp4", "w4a8", "w8a8", "int4:wo", "uint8:wo", "fp8"]


def make(fmt: str = "", **options: object) -> MadeHeadProducts:
    return MadeHeadProducts(fmt=parse_format(fmt) if fmt else None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", PRESENT)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("fmt", FORMATS)
def test_definition_alone_and_in_company(
    fmt: str, dtype: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of K terms round K + 2 times; the quantized definition repeats the kernels' order of sums."""
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    made = make(fmt, dtype=dtype)
    result = made.run(tmp_path, list(range(made.vocab)))
    size = op.reference([np.abs(made.x), np.abs(made.w)], {}, "float32")[0]
    assert (np.abs(result - made.expected()) <= (made.inner + 2) * UNIT * size).all()
    for tokens, threads in (([3], 1), ([5, 3, 0, 3] * 30, 2), (list(range(8)) * 90, 3)):
        assert same_bits(made.run(tmp_path, tokens, threads=threads), result[tokens])


@pytest.mark.parametrize(("heads", "stride", "inner", "width"), [(1, 2, 2, 48), (3, 8, 8, 16), (5, 20, 12, 17)])
def test_sizes(heads: int, stride: int, inner: int, width: int, tmp_path: Path) -> None:
    made = make(heads=heads, stride=stride, inner=inner, width=width)
    result = made.run(tmp_path, [0, 1, 2])
    size = op.reference([np.abs(made.x), np.abs(made.w)], {}, "float32")[0]
    assert (np.abs(result - made.expected()[:3]) <= (inner + 2) * UNIT * size[:3]).all()


def test_refusals() -> None:
    def infer(x: tuple, w: tuple) -> list:
        return op.infer([Value("x", "float32", x), Value("w", "float32", w)], {})

    assert infer(("tokens", 12), (3, 5, 4)) == [("float32", ("tokens", 15))]
    assert infer(("tokens", 12), (3, 5, 2)) == [("float32", ("tokens", 15))]
    for x, w in ((("tokens", 13), (3, 5, 4)), (("tokens", 12), (3, 5, 5)), (("tokens", 12), (12, 5))):
        with pytest.raises(GraphError, match="head_products"):
            infer(x, w)
