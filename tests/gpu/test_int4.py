"""Weight-only int4 products on a GPU, against the product with the dequantized weights."""

from __future__ import annotations

from typing import Any

import pytest

from support import gpu_int4 as interpreted
from tensorwright.plugins.gpu.interpret import Memory

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("n", "k"), [(1, 8), (129, 200), (1024, 4096)])
@pytest.mark.parametrize("tokens", [1, 2, 4, 16, 17, 100])
def test_equals_the_product(device: Any, tokens: int, n: int, k: int, group: int, dtype: str) -> None:
    memory = Memory()
    case = interpreted.make(memory, tokens, n, k, group, dtype, bias=dtype)
    interpreted.run(device, memory, case, interpreted.started(memory, case, device.sm))
    interpreted.check(memory, case)


@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize(("n", "k"), [(129, 200), (2048, 2048)])
def test_small_matrices(device: Any, tokens: int, n: int, k: int) -> None:
    memory = Memory()
    case = interpreted.make(memory, tokens, n, k, 64, "bfloat16", bias="bfloat16")
    case[0]["narrow"] = True
    interpreted.run(device, memory, case, interpreted.started(memory, case, device.sm), device.sm)
    interpreted.check(memory, case)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_matrices_of_many_rows_are_dequantized(device: Any, group: int, dtype: str) -> None:
    memory = Memory()
    case = interpreted.make(memory, 300, 1029, 4096, group, dtype)
    assert interpreted.run_dense(device, memory, case, device.sm) == 1
