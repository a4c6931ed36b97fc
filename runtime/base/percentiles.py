"""Summarises the measurements of benchmarks."""

from __future__ import annotations

import numpy as np

PERCENTILES = (50, 90, 99)


def distribution(values: list[float]) -> dict[str, float] | None:
    """Returns the mean and the PERCENTILES in the values' unit, as {"mean": ..., "p50": ...}; None for no values."""
    if not values:
        return None
    points = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}
    return {"mean": float(np.mean(values)), **points}
