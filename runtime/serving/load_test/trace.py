"""What was seen of each request: the time of every chunk, or what went wrong; and how many requests met the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


@dataclass
class Trace:
    """Times in seconds after the start of the test. `scheduled`: when the request should have been sent; latencies
    count from there, so that a client that falls behind cannot make the server look better."""

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
        """kind: what errors are counted by; the message of the first of a kind is shown."""
        self.error, self.message = kind, message.strip()[:300]

    @property
    def complete(self) -> bool:
        return self.error is None

    @property
    def tokens(self) -> int:
        """As the server counted them, or else one for every chunk."""
        return len(self.chunks) if self.usage is None else self.usage

    @property
    def ttft(self) -> float:
        return self.chunks[0] - self.scheduled

    @property
    def gaps(self) -> list[float]:
        """Between chunks: between tokens, where a chunk is one token."""
        return [later - earlier for earlier, later in pairwise(self.chunks)]

    @property
    def tpot(self) -> float | None:
        """Mean time of a token after the first chunk; None of a single token."""
        if self.tokens < 2 or len(self.chunks) < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.tokens - 1)

    @property
    def whole(self) -> float:
        return self.end - self.scheduled


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
