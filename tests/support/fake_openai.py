"""A completions server on loopback whose every time is known: what it does to each request is given, and it notes when.

time.perf_counter is one clock for the whole machine, so that the times of this server and of a client can be compared.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.waiting import PATIENCE


@dataclass(frozen=True)
class Answer:
    """What a request gets: a wait before each chunk, tokens of each chunk, and how it goes wrong."""

    waits: tuple[float, ...] = (0.0,)
    per_chunk: int = 1
    status: int = 200
    body: str = ""
    content_type: str = "text/event-stream"
    usage: bool = True
    dies: bool = False
    closes_without_done: bool = False
    silent: bool = False
    last_event: str | None = None


@dataclass
class Seen:
    """A request as it came, and when its chunks were written."""

    body: dict[str, Any]
    arrived: float
    written: list[float] = field(default_factory=list)
    ended: float = 0.0


class FakeServer:
    """`answers(i)` is what request number i of /v1/completions gets. Runs in a thread of its own."""

    def __init__(
        self, answers: Callable[[int], Answer], models: tuple[str, ...] = ("made-up",), tokenizer: bool = True
    ):
        self.answers, self.models, self.tokenizer = answers, models, tokenizer
        self.seen: list[Seen] = []
        self.headers: list[str] = []
        self.open, self.most_open = 0, 0

    def __enter__(self) -> FakeServer:
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await self._stop.wait()
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(serve(),))
        self._thread.start()
        ready.wait(PATIENCE)
        return self

    def stop(self) -> None:
        """From any thread, more than once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(PATIENCE)

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = next(
                (int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-l")), 0
            )
            body = json.loads(await reader.readexactly(size) or b"{}")
            self.headers.append(head)
            path = head.split()[1]
            if path == "/v1/completions":
                await self._complete(body, reader, writer)
            else:
                _send(writer, *self._other(path, body))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _other(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": name} for name in self.models]})
        if path == "/tokenize" and self.tokenizer:
            return 200, json.dumps({"tokens": tokenize(body["prompt"])})
        if path == "/detokenize" and self.tokenizer:
            return 200, json.dumps({"prompt": detokenize(body["tokens"])})
        return 404, json.dumps({"error": {"message": f"no path {path}"}})

    async def _complete(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = Seen(body, time.perf_counter())
        answer = self.answers(len(self.seen))
        self.seen.append(seen)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if answer.silent:
                await reader.read()  # until the client goes
            elif answer.status != 200:
                _send(writer, answer.status, answer.body)
            else:
                await self._stream(answer, seen, writer)
        finally:
            seen.ended = time.perf_counter()
            self.open -= 1

    async def _stream(self, answer: Answer, seen: Seen, writer: asyncio.StreamWriter) -> None:
        length = "" if answer.closes_without_done else "Transfer-Encoding: chunked\r\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {answer.content_type}\r\n{length}Connection: close\r\n\r\n"
        writer.write(head.encode())

        async def event(data: str) -> None:
            part = f"data: {data}\n\n".encode()
            writer.write(part if answer.closes_without_done else b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()

        for wait in answer.waits:
            await asyncio.sleep(wait)
            seen.written.append(time.perf_counter())
            await event(json.dumps({"choices": [{"index": 0, "text": "w" * answer.per_chunk}]}))
        if answer.last_event is not None:
            await event(answer.last_event)
        if answer.usage:
            tokens = answer.per_chunk * len(answer.waits)
            await event(json.dumps({"choices": [], "usage": {"completion_tokens": tokens}}))
        if answer.dies or answer.closes_without_done:
            return  # the closing chunk never comes, or [DONE] does not
        await event("[DONE]")
        writer.write(b"0\r\n\r\n")


def _send(writer: asyncio.StreamWriter, status: int, body: str) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body.encode())}\r\n"
    writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())


def tokenize(text: str) -> list[int]:
    """A first token 1, then one for every two characters: texts put together are cut elsewhere than their parts."""
    pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
    return [1, *(ord(pair[0]) * 256 + (ord(pair[1]) if len(pair) == 2 else 0) for pair in pairs)]


def detokenize(tokens: list[int]) -> str:
    return "".join(chr(token // 256) + (chr(token % 256) if token % 256 else "") for token in tokens)
