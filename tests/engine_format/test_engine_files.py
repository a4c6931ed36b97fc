"""What config.json says of the KV cache is what the kernels' own layout takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorwright.builder.emit.engine_files import kv_block_bytes
from tensorwright.ir.facts import Facts, KvLayer
from tensorwright.runtime import _testing


@pytest.mark.parametrize(("dtype", "number"), [("float32", 0), ("bfloat16", 1)])
@pytest.mark.parametrize(("kv_heads", "head_dim", "block_size"), [(2, 64, 32), (1, 40, 16), (3, 10, 48), (1, 7, 16)])
def test_kv_block_bytes(dtype: str, number: int, kv_heads: int, head_dim: int, block_size: int) -> None:
    facts = Facts(dtype=dtype, block_size=block_size, kv_layers=[KvLayer(0, kv_heads, head_dim, 0)] * 2)
    assert kv_block_bytes(facts) == 2 * _testing.kv_block_bytes(number, kv_heads, head_dim, block_size)
    # A layer's own type comes before the activations'.
    facts.kv_layers = [facts.kv_layers[0], replace(facts.kv_layers[1], dtype="int8")]
    assert kv_block_bytes(facts) == sum(
        _testing.kv_block_bytes(code, kv_heads, head_dim, block_size) for code in (number, 3)
    )
