"""Limits the processor time that the masks of one completion may take."""

from __future__ import annotations

PER_MASK_S = 0.010
"""The seconds of a processor that a mask may take on average."""
MAX_S = 0.050
"""The most seconds that quick masks can save up, and so the most that a single mask may take."""
SLOW_S = 0.001
"""The seconds from which a mask is slow. Slow masks are computed in other threads than quick ones."""


class MaskBudget:
    """The budget of one completion, in seconds of a processor and not of a clock, so a busy machine ends no request.

    If a hypervisor takes a processor away and does not tell, the lost time counts as used. So the first mask that takes
    too much is forgiven: it only uses up all savings.
    """

    def __init__(self) -> None:
        self.left = MAX_S
        self._forgiven = False
        self._recent = 0.0  # the seconds of the recent masks; the weight of a mask halves with each mask after it

    @property
    def slow(self) -> bool:
        return self._recent > SLOW_S

    def pay(self, seconds: float) -> bool:
        """Pays for one computed mask. Returns False if the mask took too much."""
        self._recent = max(seconds, self._recent / 2)
        if seconds > self.left:
            if self._forgiven:
                return False
            self._forgiven = True
            seconds = self.left
        self.left = min(MAX_S, self.left - seconds + PER_MASK_S)
        return True
