"""The highest rate at which enough requests are good: doubled or halved until it is bracketed, then bisected."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class RateSearch:
    """Of one side. `start`: the first rate; it is found when the bracket is narrower than `precision`."""

    start: float
    precision: float = 1.1
    lowest: float = 0.02
    good: float | None = field(default=None, init=False)
    bad: float | None = field(default=None, init=False)

    def next_rate(self) -> float | None:
        """What to try now; None when there is nothing more to find."""
        if self.good is None and self.bad is None:
            return self.start
        if self.good is None:
            assert self.bad is not None
            return self.bad / 2 if self.bad / 2 >= self.lowest else None
        if self.bad is None:
            return self.good * 2
        return math.sqrt(self.good * self.bad) if self.bad / self.good > self.precision else None

    def tell(self, rate: float, enough: bool) -> None:
        """A rate is no longer good when a lower one is not: the bracket never turns round."""
        if enough and (self.bad is None or rate < self.bad):
            self.good = max(rate, self.good or 0.0)
        elif not enough:
            self.bad = min(rate, self.bad or math.inf)
            if self.good is not None and self.good >= self.bad:
                self.good = None
