"""Goodput: complete requests per second that met the limits of latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorwright.runtime.serving.load_test.trace import Trace


@dataclass(frozen=True)
class Limits:
    """Seconds; None: no limit. The ITL limit holds for `itl_percentile` % of a request's own gaps."""

    ttft: float | None
    itl: float | None
    itl_percentile: float = 99.0

    def met_by(self, trace: Trace) -> bool:
        if not trace.complete or (self.ttft is not None and trace.ttft > self.ttft):
            return False
        gaps = trace.gaps
        if self.itl is None or not gaps:
            return True
        # A gap that was there, not one between two of them: so many percent of the gaps are within the limit, or not.
        return bool(np.percentile(gaps, self.itl_percentile, method="inverted_cdf") <= self.itl)


def goodput(traces: Sequence[Trace], limits: Limits, seconds: float) -> dict[str, float]:
    """Good requests, their share of all that were sent, and how many of them there were per second."""
    good = sum(limits.met_by(trace) for trace in traces)
    return {"good": good, "share": good / len(traces), "per_second": good / seconds}
