"""Counts how often a completion is copied as a whole: who streams must not do that for each token."""

from __future__ import annotations

from typing import Any

import pytest

from tensorwright.runtime.requests.completion_state import CompletionState
from tensorwright.runtime.requests.outputs import CompletionOutput


def count_snapshots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the tokens of each copy, as they are made. Completions that began earlier are not counted.

    An earlier test's answer may be copied for the log and for the metrics after its client has it.
    """
    copies: list[int] = []
    counted: list[CompletionState] = []
    begin, whole = CompletionState.__init__, CompletionState.output

    def begin_counted(state: CompletionState, *arguments: Any, **keywords: Any) -> None:
        begin(state, *arguments, **keywords)
        counted.append(state)

    def copy_counted(state: CompletionState) -> CompletionOutput:
        if any(state is each for each in counted):
            copies.append(state.length)
        return whole(state)

    monkeypatch.setattr(CompletionState, "__init__", begin_counted)
    monkeypatch.setattr(CompletionState, "output", copy_counted)
    return copies
