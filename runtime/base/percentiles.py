"""How the benchmarks summarise their measurements."""

from __future__ import annotations

import numpy as np

PERCENTILES = (50, 90, 99)


def distribution(values: list[float]) -> dict[str, float] | None:
    """The mean and the PERCENTILES of the values, in their own unit: {"mean": ..., "p50": ...}. None for no values."""
    if not values:
        return None
    points = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}
    return {"mean": float(np.mean(values)), **points}
