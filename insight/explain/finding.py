"""Says what a row of the explanation is: one known optimization, what became of it, and what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """What became of an optimization in an engine."""

    DONE = "done"
    OFFERED = "offered"  # an option of the runtime that is off by default, and changes no token
    LOSSY = "lossy, not asked for"
    MISSED = "missed"
    NOT_APPLICABLE = "not applicable"
    NOT_HERE = "not on this target"


@dataclass(frozen=True)
class Worth:
    """How many times as fast something is with the optimization as without it; 1 is no difference.

    decode: a token of one sequence. batch: a token of many. prefill: a prompt. bytes: the memory that it saves. how:
    where the figures are from: "roofline", "measured", or a page of the docs.
    """

    decode: float | None = None
    batch: float | None = None
    prefill: float | None = None
    bytes: int = 0
    how: str = "roofline"

    @property
    def largest(self) -> float:
        """The largest of the factors; 1 if none is known."""
        return max((factor for factor in (self.decode, self.batch, self.prefill) if factor is not None), default=1.0)


@dataclass(frozen=True)
class Finding:
    """One row. about: what the optimization is. detail: why it has its status, in words. advice: what to do to have it;
    "" where there is nothing to do. page: where the docs say what it costs. one_of: what all rows with
    this word would change, so that only one of them can be chosen; "" for a row that excludes no other."""

    name: str
    group: str
    about: str
    status: Status
    detail: str
    worth: Worth | None = None
    advice: str = ""
    page: str = ""
    one_of: str = ""
