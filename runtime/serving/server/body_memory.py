"""Bounds the memory that all bodies take together, for the bound of one body times the connections is gigabytes.

A body is counted from the moment when its length is announced, or else as its bytes come. Counting ends when the
request runs in the engine, whose own bounds then hold, or when the request is answered. The first 64 KiB of a body are
free, so large bodies never cause a small one to be refused; `--max-connections` bounds the number of small ones.
"""

from __future__ import annotations

from collections import Counter

from starlette.types import Scope

from tensorwright.runtime.serving.server.clients import address_of
from tensorwright.runtime.serving.server.errors import ApiError
from tensorwright.runtime.serving.server.json_shape import SMALL_BODY
from tensorwright.runtime.serving.server.options import ServerOptions

FREE = SMALL_BODY  # bytes of each body that are not counted


class BodyMemory:
    """Counts the bytes of all bodies, and those of each address, which may have half of the bound. It belongs to one
    event loop; `held` (bytes) and `refused` (bodies) may be read from any thread."""

    def __init__(self, options: ServerOptions):
        self.held = self.refused = 0
        self._most = options.body_memory
        self._of_address: Counter[str] = Counter()
        self._headers = {"retry-after": str(options.retry_after)}

    def open(self, scope: Scope) -> HeldBody:
        """Returns the account of one request's body."""
        return HeldBody(self, address_of(scope))

    def _take(self, address: str, size: int) -> ApiError | None:
        """Takes `size` bytes, or gives them back if `size` is negative. Where there is no room, it returns the refusal
        and changes nothing."""
        if size > 0 and (refusal := self._refusal(address, size)) is not None:
            self.refused += 1
            return refusal
        self.held += size
        self._of_address[address] += size
        if not self._of_address[address]:
            del self._of_address[address]
        return None

    def _refusal(self, address: str, size: int) -> ApiError | None:
        share = self._most // 2
        if self._of_address[address] + size > share:
            status, kind = 429, "rate_limit_error"
            why = f"your address may have {share} bytes of bodies on their way at once, half of --max-body-memory"
        elif self.held + size > self._most:
            status, kind = 503, "service_unavailable_error"
            why = f"this server takes {self._most} bytes of bodies at once, its --max-body-memory"
        else:
            return None
        return ApiError(status, f"{why}: come again later", kind, None, "too_many_bodies", self._headers)


class HeldBody:
    """The bytes that one body takes, until `close`."""

    def __init__(self, memory: BodyMemory, address: str):
        self._memory = memory
        self._address = address
        self._counted = 0

    def grow(self, size: int) -> ApiError | None:
        """Notes that the body has, or will have, `size` bytes. Returns the refusal if there is no room, else None."""
        more = size - FREE - self._counted
        if more <= 0:
            return None
        refusal = self._memory._take(self._address, more)
        if refusal is None:
            self._counted += more
        return refusal

    def close(self) -> None:
        """Gives all bytes of the body back. It may be called again."""
        self._memory._take(self._address, -self._counted)
        self._counted = 0
