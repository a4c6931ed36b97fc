"""Bytes as a socket brings them, through the server's connection to an app that reads bodies."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from functools import lru_cache
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tensorwright.runtime.serving.server.connection import Connection
from tensorwright.runtime.serving.server.connections import Connections
from tensorwright.runtime.serving.server.hosts import HostGuard
from tensorwright.runtime.serving.server.listen import Listen

CUT = b"\n--\n"
"""Between what comes at once."""
TURNS = 50  # of the loop, for one piece
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ")


class Transport(asyncio.Transport):
    """Sends nothing, and keeps what it was to send."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.paused = self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 1), "sockname": ("127.0.0.1", 8000)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def count(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with how long the body was."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    text = str(size).encode()
    headers = [(b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def connection(data: bytes) -> None:
    """data: what a client sends, in pieces."""
    loop, config = _loop()
    faults: list[dict[str, Any]] = []
    logged = _Errors.found = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    loop.run_until_complete(_serve(config, data.split(CUT)))
    assert not faults, faults
    assert not logged, logged


async def _serve(config: uvicorn.Config, pieces: list[bytes]) -> None:
    state, transport, table = ServerState(), Transport(), Connections(4)
    place = table.enter("192.0.2.1", transport.abort)
    opened = Connection(Listen(), table, place, config=config, server_state=state, app_state={})
    opened.connection_made(transport)
    for piece in pieces:
        if transport.closed:
            break
        opened.data_received(piece)
        await _answered(state)
    opened.connection_lost(None)
    await _answered(state)
    assert not state.tasks, "an answer goes on though its client has left"
    assert (table.open, table.served, len(opened._timers)) == (0, 0, 0)
    written = bytes(transport.written)
    assert not written or _STATUS.match(written), written
    assert all(int(status) < 500 or status == b"505" for status in _STATUS.findall(written)), written


async def _answered(state: ServerState) -> None:
    for _ in itertools.takewhile(lambda _: state.tasks, range(TURNS)):
        await asyncio.sleep(0)


class _Errors(logging.Handler):
    """Of the server: what an app raises is logged there."""

    found: list[str] = []  # noqa: RUF012  (of one input at a time)

    def emit(self, record: logging.LogRecord) -> None:
        _Errors.found.append(f"{record.getMessage()} {record.exc_info}")


@lru_cache(maxsize=1)
def _loop() -> tuple[asyncio.AbstractEventLoop, uvicorn.Config]:
    app: Any = HostGuard(count, (), local=True)
    config = uvicorn.Config(app, loop="asyncio", http="httptools", ws="none", log_config=None, lifespan="off")
    config.load()
    logging.getLogger("uvicorn.error").addHandler(_Errors(logging.ERROR))
    return asyncio.new_event_loop(), config
