"""Sends jobs to a server and says how each ended. Every job has one end, and no try takes longer than PATIENCE."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
from soak_answers import Answer
from soak_jobs import FINISHED, KEYS, LATE, LEFT, LIMITED, MISSING, REFUSED, UNAVAILABLE, Job

PATIENCE = 240.0
"""Seconds in which every try must have ended, whatever happens to the server meanwhile, on a busy machine too."""
RESTART_PATIENCE = 240.0
"""Seconds in which a server that is started again must take connections."""
ENDS = {404: MISSING, 429: LIMITED, 503: UNAVAILABLE, 504: LATE, 400: REFUSED, 408: REFUSED, 413: REFUSED, 422: REFUSED}


@dataclass
class Outcome:
    """How a job ended. end: one of the ends, or a description of what must not happen. answers: of each step. tries:
    the ids of all HTTP requests, with the status that each had; None: none came."""

    job: Job
    end: str = "nothing"
    answers: list[Any] = field(default_factory=list)
    tries: dict[str, int | None] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return self.end in self.job.ends


class Again(Exception):
    """The server is on its way to another life: the step is sent again."""


class Clients:
    """Clients of one server. restarting: whether the server may be away for a while just now."""

    def __init__(self, port: int, tag: str = "soak"):
        self.port, self._tag = port, tag
        self.restarting = False
        self.codes: Counter[str] = Counter()
        self._http: httpx.AsyncClient | None = None

    async def open(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        address = f"http://127.0.0.1:{self.port}"
        self._http = httpx.AsyncClient(base_url=address, limits=limits, timeout=None, trust_env=False)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def run(self, job: Job) -> Outcome:
        outcome = Outcome(job)
        try:
            previous: str | None = None
            for step in range(len(job.steps)):
                end, previous = await self._step(outcome, step, previous)
                outcome.end = end
                if end != FINISHED:
                    break
        except Exception as error:  # Whatever it is, it is this job's end, and a wrong one.
            outcome.end = f"{type(error).__name__}: {error}"
        return outcome

    async def _step(self, outcome: Outcome, step: int, previous: str | None) -> tuple[str, str | None]:
        loop, count = asyncio.get_running_loop(), 0
        given_up = loop.time() + RESTART_PATIENCE
        while True:
            name = f"{self._tag}-{outcome.job.number}-{step}-{count}"
            try:
                async with asyncio.timeout(PATIENCE):
                    return await self._try(outcome, step, previous, name)
            except TimeoutError:
                return f"hangs: no end after {PATIENCE:.0f} s", None
            except Again as again:
                if loop.time() > given_up:
                    return f"the server did not come back: {again}", None
            count += 1
            await asyncio.sleep(0.25)

    async def _try(self, outcome: Outcome, step: int, previous: str | None, name: str) -> tuple[str, str | None]:
        job = outcome.job
        path, body = job.steps[step]
        if "previous_response_id" in body:
            body = {**body, "previous_response_id": previous}
        headers = {"authorization": f"Bearer {KEYS[job.key].split()[0]}", "x-request-id": name,
                   "content-type": "application/json"}  # fmt: skip
        if job.kind == "half sent":
            return await self._half(outcome, headers, name), None
        content = json.dumps(body).encode() if job.raw is None else job.raw
        assert self._http is not None
        outcome.tries[name] = None
        answer = Answer(path)
        try:
            if job.manner == "leaves" and not body.get("stream"):
                return await self._leave(outcome, path, headers, content, name), None
            async with self._http.stream("POST", path, headers=headers, content=content) as response:
                outcome.tries[name] = response.status_code
                if response.status_code != 200:
                    return self._refusal(job, response.status_code, await response.aread()), None
                if job.manner == "leaves" and job.pieces == 0:
                    return LEFT, None
                if not body.get("stream"):
                    answer.whole(json.loads(await response.aread()))
                elif await self._read(response, answer, job):
                    return LEFT, None
        except (httpx.ConnectError, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
            if self.restarting and answer.pieces == 0:
                raise Again(type(error).__name__) from error
            if job.manner == "stops":
                return LEFT, None
            raise
        if answer.error is not None:
            return self._failed(answer.error), None
        if not answer.done:
            return "the stream ended without its end", None
        outcome.answers.append(answer.bits)
        return FINISHED, answer.response_id

    async def _read(self, response: httpx.Response, answer: Answer, job: Job) -> bool:
        """Reads a stream. Returns True if the client leaves before the end."""
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            answer.piece(line.removeprefix("data:").strip())
            if job.manner == "leaves" and answer.pieces >= job.pieces:
                return True
            if job.manner == "slow":
                await asyncio.sleep(0.02)
            if job.manner == "stops" and answer.pieces == 2:
                await asyncio.sleep(3)
        return False

    async def _leave(self, outcome: Outcome, path: str, headers: dict[str, str], content: bytes, name: str) -> str:
        """Waits for a moment, and leaves unless the answer came."""
        assert self._http is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02 * outcome.job.pieces):
                response = await self._http.post(path, headers=headers, content=content)
                outcome.tries[name] = response.status_code
                if response.status_code != 200:
                    return self._refusal(outcome.job, response.status_code, response.content)
        return LEFT

    async def _half(self, outcome: Outcome, headers: dict[str, str], name: str) -> str:
        """Sends less than the whole body, and waits for an answer or leaves."""
        assert outcome.job.raw is not None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError as error:
            if self.restarting:
                raise Again(type(error).__name__) from error
            raise
        outcome.tries[name] = None
        lines = [f"POST {outcome.job.steps[0][0]} HTTP/1.1", f"host: 127.0.0.1:{self.port}", "content-length: 4000"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        try:
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + outcome.job.raw)
            await writer.drain()
            if outcome.job.number % 2:
                return LEFT
            first = await reader.readline()
        except ConnectionError:
            return LEFT
        finally:
            writer.close()
        if not first:
            return LEFT  # The server closed the connection, as it may when it drains.
        status = outcome.tries[name] = int(first.split()[1])
        return ENDS.get(status, f"status {status}")

    def _refusal(self, job: Job, status: int, body: bytes) -> str:
        try:
            error = json.loads(body)["error"]
        except (ValueError, KeyError):
            return f"status {status} without an error: {body[:80]!r}"
        self.codes[f"{status} {error.get('code') or error.get('type')}"] += 1
        if status == 503 and self.restarting:
            raise Again(str(error.get("message")))
        end = ENDS.get(status)
        return end if end in job.ends else f"status {status}: {error.get('message')}"

    def _failed(self, error: dict[str, Any]) -> str:
        """Returns the end of a stream whose last event is an error."""
        code = str(error.get("code") or error.get("type"))
        self.codes[f"event {code}"] += 1
        known = {"deadline_exceeded": LATE, "timeout_error": LATE, "engine_restarted": UNAVAILABLE,
                 "overloaded_error": UNAVAILABLE}  # fmt: skip
        return known.get(code, f"error event {code}: {error.get('message')}")
