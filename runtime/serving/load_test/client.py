"""Streams completions of an OpenAI-compatible server for a load test, and notes the time of every chunk.

A chunk's time is the time at which its bytes arrive. The failure of one request is kept in its trace. A failure that
makes the whole test pointless (no server, no such model) is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tensorwright.errors import InvalidOptionError, LoadTestError, MissingDependencyError
from tensorwright.installing import install
from tensorwright.json_text import read_json
from tensorwright.runtime.serving.load_test.events import BadAnswer, EventParser, error_message, read_chunk
from tensorwright.runtime.serving.load_test.trace import Trace

if TYPE_CHECKING:
    import httpx

try:
    import httpx
except ImportError as error:
    raise MissingDependencyError(f"bench serve needs httpx, which is not installed: {install('serve')}") from error

EVENT_STREAM = "text/event-stream"
SETUP_TIMEOUT = 60.0
"""The seconds that an answer without a model's work may take."""


class Client:
    """A client of one server. timeout: the seconds without an event after which the client gives a request up."""

    def __init__(self, base: str, timeout: float, api_key: str | None = None):
        self.base, self.timeout = base, timeout
        # The encoding is "identity", for a compressed stream comes in blocks, not in tokens.
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=base, headers=headers, limits=limits, timeout=None, trust_env=False)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def choose_model(self, name: str | None) -> str:
        """Returns the name of the model to ask: the given one, or the server's only one. Raises InvalidOptionError if
        the server does not have it, and LoadTestError if the server lists no models."""
        response = await self._ask("GET", "/v1/models")
        if response.status_code != 200:
            raise LoadTestError(f"{self.base}/v1/models must list the models; {_describe(response)}")
        try:
            names = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise LoadTestError(
                f"{self.base}/v1/models must list the models, it sent {response.text[:200]!r}"
            ) from None
        if name is None and len(names) == 1:
            return names[0]
        if name not in names:
            came = "none given" if name is None else f"got {name!r}"
            raise InvalidOptionError(f"--model must be one that the server has: {', '.join(names)}; {came}")
        return name

    async def post(self, path: str, body: dict[str, Any], remedy: str) -> dict[str, Any]:
        """Posts a question that is no part of the test, and returns the answer. Raises LoadTestError, with the remedy,
        if the server has no answer."""
        response = await self._ask("POST", path, body)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code != 200 or not isinstance(answer, dict):
            raise LoadTestError(f"{self.base}{path} must answer; {_describe(response)}; {remedy}")
        return answer

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            async with asyncio.timeout(SETUP_TIMEOUT):
                return await self._http.request(method, path, json=body)
        except TimeoutError:
            raise LoadTestError(f"{self.base} must answer {path} within {SETUP_TIMEOUT:.0f} s, it did not") from None
        except httpx.HTTPError as error:
            raise LoadTestError(
                f"a server must listen at {self.base}: {_name(error)}; start one, or correct the URL"
            ) from None

    async def complete(self, body: dict[str, Any], trace: Trace, clock: Callable[[], float]) -> None:
        """Streams one completion into its trace. A fault of the server is kept in the trace and never raised."""
        trace.sent = clock()
        try:
            async with (
                asyncio.timeout(self.timeout) as limit,
                self._http.stream("POST", "/v1/completions", json=body) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    trace.fail(f"http {response.status_code}", _describe(response))
                elif not response.headers.get("content-type", "").startswith(EVENT_STREAM):
                    raise BadAnswer(f"its type must be {EVENT_STREAM}, is {response.headers.get('content-type')}")
                else:
                    await self._read(response, trace, clock, limit)
        except TimeoutError:
            trace.fail("timeout", f"nothing came for {self.timeout:g} s")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            trace.fail("no connection", _name(error))
        except httpx.HTTPError as error:
            trace.fail("broken off", _name(error))
        except BadAnswer as error:
            trace.fail("bad answer", str(error))
        finally:
            trace.end = clock()

    async def _read(
        self, response: httpx.Response, trace: Trace, clock: Callable[[], float], limit: asyncio.Timeout
    ) -> None:
        parser, loop = EventParser(), asyncio.get_running_loop()
        async for received in response.aiter_raw():
            now = clock()
            for data in parser.feed(received):
                limit.reschedule(loop.time() + self.timeout)
                chunk = read_chunk(data)
                if chunk.error is not None:
                    trace.fail("error event", chunk.error)
                    return
                if chunk.done:
                    if not trace.chunks:
                        raise BadAnswer("a completion without text")
                    return
                if chunk.has_text:
                    trace.chunks.append(now)
                if chunk.usage is not None:
                    trace.usage = chunk.usage
        trace.fail("broken off", "the stream ended without [DONE]")


def _describe(response: httpx.Response) -> str:
    try:
        message = error_message(read_json(response.text))
    except ValueError:
        message = response.text
    return f"it answered {response.status_code}: {message.strip()[:200] or 'nothing'}"


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
