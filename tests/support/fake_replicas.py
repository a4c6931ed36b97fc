"""A handle of Ray Serve whose replicas do what a test says: each attempt at a request runs one script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from tensorwright.runtime.base.engine_event import EngineEvent
from tensorwright.runtime.serving.ray.wire import RemoteRequest, ReplicaNews

Script = Callable[[RemoteRequest], AsyncIterator[ReplicaNews]]


def news(*tokens: int, finish: str = "", engine: str = "e", **more: Any) -> ReplicaNews:
    return ReplicaNews(engine, [EngineEvent(0, 0, tokens=tokens, finish=finish, **more)])


class FakeResponse:
    """What a handle's `remote` returns with stream=True."""

    def __init__(self, script: AsyncIterator[ReplicaNews]):
        self._script = script
        self.cancelled = False

    def __aiter__(self) -> AsyncIterator[ReplicaNews]:
        return self._script

    def cancel(self) -> None:
        self.cancelled = True


class FakeHandle:
    """A DeploymentHandle. scripts: one for each attempt, the last one for all that follow. attempts: what was sent."""

    def __init__(self, *scripts: Script):
        self._scripts = list(scripts)
        self.attempts: list[RemoteRequest] = []
        self.responses: list[FakeResponse] = []

    def options(self, method_name: str, stream: bool) -> FakeHandle:
        assert (method_name, stream) == ("generate", True)
        return self

    def shutdown(self) -> None:
        self.is_shut_down = True

    def remote(self, request: RemoteRequest) -> FakeResponse:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.attempts.append(request)
        self.responses.append(FakeResponse(script(request)))
        return self.responses[-1]


def answers(*parts: ReplicaNews, then: Exception | None = None) -> Script:
    """Gives these parts, and fails then."""

    async def run(request: RemoteRequest) -> AsyncIterator[ReplicaNews]:
        for part in parts:
            yield part
        if then is not None:
            raise then

    return run


def counts(parts: int | None = None, then: Exception | None = None) -> Script:
    """Gives as tokens the numbers that follow the prompt's last one, up to max_tokens. parts: of how many tokens it
    gives before it fails."""

    async def run(request: RemoteRequest) -> AsyncIterator[ReplicaNews]:
        most = request.params.max_tokens
        assert most is not None
        for number in range(most):
            if number == parts:
                assert then is not None
                raise then
            yield news(request.tokens[-1] + 1 + number, finish="length" if number == most - 1 else "")

    return run


def hangs(*parts: ReplicaNews) -> Script:
    async def run(request: RemoteRequest) -> AsyncIterator[ReplicaNews]:
        for part in parts:
            yield part
        await asyncio.Event().wait()

    return run
