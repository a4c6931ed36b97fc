"""The attention kernels on a GPU against their numpy definition, larger than Triton's interpreter has time for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support import far_pages
from support.gpu_attention import Step

pytestmark = pytest.mark.gpu

MIXED = ((1, 4000), (300, 300), (1, 1), (0, 3), (33, 1100), (1, 513), (2, 100), (1, 9000))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kv", ["same", "int8", "fp8"])
@pytest.mark.parametrize("window", [0, 700])
def test_mixed_steps(device: Any, dtype: str, kv: str, window: int) -> None:
    cache = {"int8_kv": kv != "same", "e4m3_kv": kv == "fp8"}
    Step(MIXED, heads=8, head_dim=128, dtype=dtype, **cache, window=window, sm=device.sm).check(device)


@pytest.mark.parametrize("head_dim", [16, 40, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_head_dims(device: Any, head_dim: int, dtype: str) -> None:
    Step(MIXED, head_dim=head_dim, dtype=dtype, sm=device.sm).check(device)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (7, 1), (8, 8), (71, 1), (130, 1)])
def test_groups(device: Any, heads: int, kv_heads: int) -> None:
    Step(MIXED, heads=heads, kv_heads=kv_heads, head_dim=64, sm=device.sm).check(device)


@pytest.mark.parametrize("block_size", [16, 64, 128])
def test_block_sizes(device: Any, block_size: int) -> None:
    Step(MIXED, block_size=block_size, head_dim=64, sm=device.sm).check(device)


@pytest.mark.parametrize("int8_kv", [False, True])
def test_soft_cap_sinks_and_window(device: Any, int8_kv: bool) -> None:
    options = {"softcap": 30.0, "has_sinks": True, "window": 129, "int8_kv": int8_kv, "dtype": "bfloat16"}
    Step(MIXED, head_dim=256, sm=device.sm, **options).check(device)


@pytest.mark.parametrize("listed", [True, False])
def test_the_same_bits_every_time(device: Any, listed: bool) -> None:
    """Programs finish in any order; their parts are added up in one. Without a list company changes nothing either."""
    step = Step(((1, 9000), (200, 1500)), heads=8, head_dim=128, sm=device.sm, listed=listed)
    first = step.run(device)
    for _ in range(5):
        np.testing.assert_array_equal(step.run(device), first)
    if listed:
        return
    alone = Step(((1, 9000),), heads=8, head_dim=128, sm=device.sm, listed=False)
    blocks = step.block_tables[0, : -(-9000 // step.block_size)]
    alone.q[:], alone.k[alone.block_tables[0, : len(blocks)]] = step.q[:1], step.k[blocks]
    alone.v[alone.block_tables[0, : len(blocks)]] = step.v[blocks]
    np.testing.assert_array_equal(alone.run(device)[0], first[0])


def test_pages_behind_2_31_elements(device: Any) -> None:
    far_pages.attend(device, device.sm)
