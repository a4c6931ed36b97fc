"""Bounds the tokens that a key may have in a minute, prompts and answers together, and says so in OpenAI's headers.

Each key has a bucket that holds the tokens of one minute and fills up evenly. A request enters if its bucket has a
token, and the tokens of its answer if it names max_tokens; these are taken at once and given back at the end as far as
they were not used. What cannot be known before is taken when it is known: the prompt once it is counted, the rest of an
answer at its end. So a bucket can be overdrawn, and the next requests wait until it has filled up again: over a longer
time a key never has more than its tokens per minute, however long its prompts and answers are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tensorwright.durations import format_duration
from tensorwright.errors import RateLimitError
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.sampling_params import AtMost, SamplingParams
from tensorwright.runtime.serving.server.api_keys import ApiKey
from tensorwright.runtime.serving.server.errors import describe_error

HEADERS = ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens")


class TokenBucket:
    """The tokens of one key. per_minute: what it holds, and what comes in a minute. clock: returns seconds."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic):
        self.per_minute = per_minute
        self.used = 0
        """All tokens that were taken."""
        self.refused = 0
        """The requests that found too few."""
        self._clock = clock
        self._left = float(per_minute)
        self._at = clock()

    def enter(self, tokens: int) -> None:
        """Takes so many tokens, at most all that the bucket can hold. Raises RateLimitError if there are fewer, or
        none; then nothing was taken."""
        least = min(max(1, tokens), self.per_minute)
        if self.left < least - 1e-6:  # what rounding leaves out is not missed
            self.refused += 1
            wait = self.seconds_until(least)
            raise RateLimitError(
                f"your key may have {self.per_minute} tokens a minute and has too few left for this request; try again "
                f"in {format_duration(wait)}",
                wait,
            )
        self.take(tokens)

    def take(self, tokens: int) -> None:
        """Takes tokens, also more than there are; gives negative ones back."""
        self._left = self.left - tokens
        self.used += tokens

    @property
    def left(self) -> float:
        """The tokens that are left now; negative if more were used than there were."""
        now = self._clock()
        self._left = min(float(self.per_minute), self._left + (now - self._at) * self.per_minute / 60)
        self._at = now
        return self._left

    def seconds_until(self, tokens: float) -> float:
        """Returns the seconds until so many tokens are left."""
        return max(0.0, tokens - self.left) * 60 / self.per_minute

    def headers(self) -> dict[str, str]:
        values = (
            str(self.per_minute),
            str(max(0, int(self.left))),
            format_duration(self.seconds_until(self.per_minute)),
        )
        return dict(zip(HEADERS, values, strict=True))


class RateLimits:
    """The buckets of all keys that have a bound. It belongs to one event loop."""

    def __init__(self, keys: Sequence[ApiKey], clock: Callable[[], float] = time.monotonic):
        self._buckets = {
            number: TokenBucket(key.tokens_per_minute, clock)
            for number, key in enumerate(keys, start=1)
            if key.tokens_per_minute is not None
        }

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def items(self) -> Iterator[tuple[int, TokenBucket]]:
        """Yields the number of each key that has a bound, counted from 1, with its bucket."""
        return iter(self._buckets.items())

    def of(self, scope: Scope) -> TokenBucket | None:
        """Returns the bucket of a request's key; None if it has no bound."""
        return self._buckets.get(scope["state"].get("key", 0))


class Spending:
    """What one request takes of its bucket."""

    def __init__(self, bucket: TokenBucket):
        self.bucket = bucket
        self._taken = 0

    def reserve(self, tokens: int) -> None:
        """Takes the tokens that the answer may have. Raises RateLimitError."""
        self.bucket.enter(tokens)
        self._taken += tokens

    def charge(self, tokens: int) -> None:
        """Takes tokens that are needed in any case."""
        self.bucket.take(tokens)
        self._taken += tokens

    def settle(self, handles: Sequence[RequestHandle]) -> None:
        """Corrects what was taken to what the engine's requests have had so far."""
        outputs = [handle.so_far() for handle in handles]
        had = sum(
            len(output.prompt_token_ids) + sum(len(completion.token_ids) for completion in output.outputs)
            for output in outputs
        )
        self.bucket.take(had - self._taken)
        self._taken = had


def reserve_tokens(request: Request, params: SamplingParams, prompts: int = 1) -> None:
    """Takes the tokens that the answers of a request may have, if its key has a bound. Raises RateLimitError (429)."""
    spending: Spending | None = request.scope["state"].get("spending")
    if spending is None:
        return
    given = params.max_tokens is not None and not isinstance(params.max_tokens, AtMost)
    spending.reserve(prompts * params.n * (params.max_tokens or 0) if given else 0)


def charge_prompts(scope: Scope, handles: Sequence[RequestHandle]) -> None:
    """Takes the tokens of the prompts, which have been counted, if the request's key has a bound."""
    spending: Spending | None = scope["state"].get("spending")
    if spending is not None:
        spending.charge(sum(len(handle.so_far().prompt_token_ids) for handle in handles))


class RateGuard:
    """Gives each request of a key with a bound its Spending, settles it at the end, and writes the headers."""

    def __init__(self, app: ASGIApp, limits: RateLimits):
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bucket = self._limits.of(scope) if scope["type"] == "http" else None
        if bucket is None:
            await self._app(scope, receive, send)
            return

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in bucket.headers().items():
                    headers[name] = value
            await send(message)

        spending = scope["state"]["spending"] = Spending(bucket)
        try:
            if scope["method"] == "POST":  # what is only read costs no tokens
                spending.reserve(0)
        except RateLimitError as error:
            await describe_error(error).response()(scope, receive, send_with_limits)
            return
        try:
            await self._app(scope, receive, send_with_limits)
        finally:
            spending.settle(scope["state"]["handles"])
