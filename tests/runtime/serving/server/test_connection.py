"""One connection without a network: its transport is ours, and sends nothing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tensorwright.runtime.serving.server.connection import Connection
from tensorwright.runtime.serving.server.connections import Connections
from tensorwright.runtime.serving.server.listen import Listen

UNSENT = 50_000  # bytes that the client of a transport does not take, less than what pauses who writes


class Unread(asyncio.Transport):
    """Its client takes nothing of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ends: list[str] = []

    def get_write_buffer_size(self) -> int:
        return UNSENT

    def is_closing(self) -> bool:
        return bool(self.ends)

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Reset(Unread):
    """Its client has reset the connection, which nobody has noticed yet."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")


async def never_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


POST = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.mark.parametrize("client", [Unread, Reset])
@pytest.mark.parametrize("sent", [POST + b"zz\r\n", GET + POST + b"zz\r\n"], ids=["at once", "behind another request"])
def test_who_is_refused_and_takes_nothing_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, client: type[Unread]
) -> None:
    """Its request counts while it is there, so that else it would keep its place for good."""
    timers: dict[str, Callable[[], None]] = {}

    def set_timer(name: str, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        timers[name] = lambda: then(*arguments)

    async def run() -> None:
        config = uvicorn.Config(never_answer, loop="asyncio", http="httptools", ws="none", log_config=None)
        config.load()
        state, transport, table = ServerState(), client(), Connections(4)
        place = table.enter("a", lambda: None)
        opened = Connection(Listen(), table, place, config=config, server_state=state, app_state={})
        monkeypatch.setattr(opened, "_set_timer", set_timer)
        monkeypatch.setattr(opened, "_stop_timer", lambda name: timers.pop(name, None))
        opened.connection_made(transport)
        opened.data_received(sent)
        assert table.served == 1
        while timers:
            timers.pop(next(iter(timers)))()
        assert transport.ends[-1] == "abort"
        for task in state.tasks:
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)

    asyncio.run(run())
