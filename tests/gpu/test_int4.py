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
