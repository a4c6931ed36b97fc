"""The ops that compute rows from rows on a GPU, against the definitions in numpy."""

from __future__ import annotations

from typing import Any

import pytest

from support import gpu_carried, gpu_draws, gpu_latent, gpu_mixtures, gpu_rows

pytestmark = pytest.mark.gpu
LARGE = {
    "embedding": lambda: gpu_rows.embedding_case("bfloat16", 300, 4096, 1.0, None),
    "table": lambda: gpu_rows.table_case(list(range(0, 1_000_000, 997)), 64, 1.0),
    "gated": lambda: gpu_rows.gated_case("bfloat16", 300, 14336, "silu"),
    "elementwise": lambda: gpu_rows.elementwise_case("x0 x1 add", gpu_rows.SAME["bfloat16"], (300, 4096)),
    "columns": lambda: gpu_rows.columns_case("bfloat16", 300, 48 * 128, 0, 32, 128, in_place=True),
    "layer_norm": lambda: gpu_rows.layer_norm_case("bfloat16", (70, 16384), with_sum=True, bias=True),
    "experts": lambda: gpu_mixtures.experts_case("bfloat16", 700, 256, 192, 16, 4),
    "route": lambda: gpu_mixtures.route_case("float32", 700, 256, k=8, bias=True, score="sigmoid", by_scores=True,
                                             groups=8, group_limit=4, group_best=2),
    "draws": lambda: gpu_draws.draw_case(64, 128_256, 4),
    "draws of a large vocabulary": lambda: gpu_draws.draw_case(3, 262_144, 5),
}  # fmt: skip
"""Cases whose numbers take a while to draw, and much memory: they are drawn where there is a GPU."""


@pytest.mark.parametrize(
    "case",
    [
        *gpu_rows.CASES,
        *gpu_mixtures.CASES,
        *gpu_latent.CASES,
        *gpu_carried.CASES,
        *gpu_draws.CASES,
    ],
    ids=str,
)
def test_equals_the_definition(device: Any, case: gpu_rows.Case) -> None:
    gpu_rows.run(device, case)


@pytest.mark.parametrize("name", LARGE)
def test_large_rows_equal_the_definition(device: Any, name: str) -> None:
    gpu_rows.run(device, LARGE[name]())
