"""Stands in for an engine while another one takes its place, so that the memory of the old one is free."""

from __future__ import annotations

from typing import Any

from tensorwright.errors import EngineStoppedError


class NoEngine:
    """What EngineClient calls of an engine, of one that is gone. cause, stats: the last ones of that engine."""

    stopped, called_here = True, False

    def __init__(self, cause: str, stats: dict[str, Any]):
        self.cause = cause
        self._stats = {**stats, "running": 0}

    def __getattr__(self, name: str) -> Any:
        raise EngineStoppedError(f"the engine {self.cause}; another one takes its place")

    def submit(self, *request: Any) -> None:
        raise EngineStoppedError(f"the engine {self.cause}; another one takes its place")

    def abort(self, request_id: int, completion: int = -1) -> bool:
        return False

    def set_mask(self, *mask: Any) -> bool:
        return False

    def wait_events(self, timeout: float) -> list[Any]:
        return []

    def stats(self) -> dict[str, Any]:
        return self._stats

    def begin_shutdown(self, drain: bool) -> None:
        """It has stopped."""

    def shutdown(self, drain: bool, timeout: float) -> None:
        """It has stopped."""
