"""What was seen of one request: the time of every chunk, or what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


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
