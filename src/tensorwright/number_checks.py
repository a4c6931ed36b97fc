"""Says which values that users give are numbers. numpy's numbers are numbers; True and False are not.

Any room may import this file; it imports nothing of ours.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

MAX_INT32 = 2**31 - 1


def is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def real(value: Any) -> float:
    """Returns the number as a float. A value that is no number, or too large for a float, gives NaN, which is in no
    range."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
