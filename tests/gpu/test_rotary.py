"""rotary_kv_write on a GPU, against the definition in numpy."""

from __future__ import annotations

from typing import Any

import pytest

from support import far_pages
from support import gpu_rotary as interpreted
from tensorwright.plugins.gpu.interpret import Memory

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cache", ["same", "int8", "fp8"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim"),
    [(32, 8, 128, 128), (9, 3, 64, 64), (71, 1, 64, 0), (5, 5, 80, 32), (3, 1, 7, 6), (2, 2, 256, 64)],
)
@pytest.mark.parametrize("tokens", [1, 17, 128])
def test_equals_the_definition(
    device: Any, tokens: int, heads: int, kv_heads: int, head_dim: int, rotary_dim: int, cache: str, dtype: str
) -> None:
    attrs = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": rotary_dim}
    attrs["e4m3_kv"] = int(cache == "fp8")
    memory = Memory()
    case = interpreted.make(memory, tokens, attrs, dtype, dtype if cache == "same" else "int8")
    interpreted.run(device, memory, case, attrs)
    interpreted.check(memory, attrs)


def test_pages_behind_2_31_elements(device: Any) -> None:
    far_pages.write(device)
