"""Keeps the trace of each request: the times of its chunks, or its error. Counts the requests that met the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


@dataclass
class Trace:
    """The trace of one request. Times are in seconds after the start of the test.

    scheduled: when the request should have been sent. Latencies count from this time, so that a client that falls
    behind does not make the server look better.
    """

    scheduled: float
    prompt_tokens: int
    max_tokens: int
    sent: float = 0.0
    end: float = 0.0
    chunks: list[float] = field(default_factory=list)
    usage: int | None = None
    error: str | None = None
    message: str = ""

    def fail(self, kind: str, message: str) -> None:
        """Notes the request's error. kind: the kind by which errors are counted. message: the text; the report shows
        the first one of each kind."""
        self.error, self.message = kind, message.strip()[:300]

    @property
    def complete(self) -> bool:
        return self.error is None

    @property
    def tokens(self) -> int:
        """The number of tokens as the server counted them, or else one for every chunk."""
        return len(self.chunks) if self.usage is None else self.usage

    @property
    def ttft(self) -> float:
        return self.chunks[0] - self.scheduled

    @property
    def gaps(self) -> list[float]:
        """The seconds between chunks, which are the seconds between tokens where a chunk is one token."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]

    @property
    def tpot(self) -> float | None:
        """The mean seconds of a token after the first chunk; None for fewer than two tokens or chunks."""
        if self.tokens < 2 or len(self.chunks) < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.tokens - 1)

    @property
    def whole(self) -> float:
        return self.end - self.scheduled


@dataclass(frozen=True)
class Limits:
    """The limits of goodput in seconds; None means no limit. The ITL limit must hold for `itl_percentile` % of the gaps
    of a request."""

    ttft: float | None
    itl: float | None
    itl_percentile: float = 99.0

    def met_by(self, trace: Trace) -> bool:
        if not trace.complete or (self.ttft is not None and trace.ttft > self.ttft):
            return False
        gaps = trace.gaps
        if self.itl is None or not gaps:
            return True
        # The percentile is a measured gap and no interpolation: at least so many percent of the gaps are within it.
        return bool(np.percentile(gaps, self.itl_percentile, method="inverted_cdf") <= self.itl)


def goodput(traces: Sequence[Trace], limits: Limits, seconds: float) -> dict[str, float]:
    """Returns the number of requests that met the limits, their share of all sent requests, and their number per
    second."""
    good = sum(limits.met_by(trace) for trace in traces)
    return {"good": good, "share": good / len(traces), "per_second": good / seconds}
