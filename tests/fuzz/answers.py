"""What a target may end with: nothing at all, or a typed error that can be shown and sent."""

from __future__ import annotations

import json
from typing import Any

LONGEST = 20_000
"""Characters of an error: what was asked for is shown in part."""


class Answered:
    """Lets these errors pass, and nothing else."""

    def __init__(self, *errors: type[BaseException]):
        self._errors = errors

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not isinstance(error, self._errors):
            return False
        said = str(error)
        assert len(said) < LONGEST, f"{len(said)} characters: {said[:200]}"
        said.encode()
        return True


def as_json(data: bytes) -> Any:
    """The values that a caller in Python has; None for what is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
