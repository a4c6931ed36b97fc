"""An event in the form of the C++ engine's, for what Python itself has to tell of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EngineEvent:
    """News of one completion. It has all that an event of the engine has (runtime/core/scheduler/request.h)."""

    request_id: int
    completion: int
    tokens: tuple[int, ...] | list[int] = ()
    logprobs: tuple[Any, ...] | list[Any] = ()
    prompt_logprobs: tuple[Any, ...] | list[Any] = ()
    finish: str = ""
    stop_token: int = -1
    error_type: str = ""
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    cumulative_logprob: float = 0.0
    queue_s: float = -1.0
    first_token_s: float = -1.0
    pooled: Any = None
