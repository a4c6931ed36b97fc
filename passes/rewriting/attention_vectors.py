"""Says which operands follow v in a new attention that replaces a matched one; not a pass."""

from __future__ import annotations

from tensorwright.ir import Value
from tensorwright.passes.rewriting.matcher import Match


def vectors_of(m: Match) -> list[Value | None]:
    """Returns the sinks and the slopes that a match has bound, without absent ones at the end."""
    return without_absent(m.sinks, m.slopes)


def without_absent(sinks: Value | None, slopes: Value | None) -> list[Value | None]:
    if slopes is not None:
        return [sinks, slopes]
    return [] if sinks is None else [sinks]
