"""Counts how often a completion is copied as a whole: who streams must not do that for each token."""

from __future__ import annotations

import pytest

from tensorwright.runtime.requests.completion_state import CompletionState
from tensorwright.runtime.requests.outputs import CompletionOutput


def count_snapshots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each copy, as they are made."""
    copies: list[int] = []
    whole = CompletionState.output

    def counted(state: CompletionState) -> CompletionOutput:
        copies.append(state.length)
        return whole(state)

    monkeypatch.setattr(CompletionState, "output", counted)
    return copies
