"""Finds the highest rate at which enough requests are good: doubles or halves it to a bracket, then bisects that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class RateSearch:
    """The search of one side. `start`: the first rate. It ends when the bracket is narrower than `precision`."""

    start: float
    precision: float = 1.1
    lowest: float = 0.02
    good: float | None = field(default=None, init=False)
    bad: float | None = field(default=None, init=False)

    def next_rate(self) -> float | None:
        """Returns the rate to try now; None when the search is over."""
        if self.good is None and self.bad is None:
            return self.start
        if self.good is None:
            assert self.bad is not None
            return self.bad / 2 if self.bad / 2 >= self.lowest else None
        if self.bad is None:
            return self.good * 2
        return math.sqrt(self.good * self.bad) if self.bad / self.good > self.precision else None

    def tell(self, rate: float, enough: bool) -> None:
        """Records a trial. A rate above one that is not good counts as not good, so the bracket never turns round."""
        if enough and (self.bad is None or rate < self.bad):
            self.good = max(rate, self.good or 0.0)
        elif not enough:
            self.bad = min(rate, self.bad or math.inf)
            if self.good is not None and self.good >= self.bad:
                self.good = None
