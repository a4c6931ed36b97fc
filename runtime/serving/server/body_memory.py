"""How much memory bodies take together: each one's own bound times the connections would be gigabytes.

A body is counted from where its length is announced, or else as it comes, until its request runs in the engine, whose
own bounds hold from there on, or is answered. Its first 64 KiB are free, so a small body is never refused for the sake
of large ones; `--max-connections` bounds those.
"""

from __future__ import annotations

from collections import Counter

from starlette.types import Scope

from tensorwright.runtime.serving.server.clients import address_of
from tensorwright.runtime.serving.server.errors import ApiError
from tensorwright.runtime.serving.server.json_shape import SMALL_BODY
from tensorwright.runtime.serving.server.options import ServerOptions

FREE = SMALL_BODY  # bytes of each body


class BodyMemory:
    """Counts all bodies, and those of each address, which may have half. Belongs to one event loop; `held`, bytes, and
    `refused`, bodies, may be read from any thread."""

    def __init__(self, options: ServerOptions):
        self.held = self.refused = 0
        self._most = options.body_memory
        self._of_address: Counter[str] = Counter()
        self._headers = {"retry-after": str(options.retry_after)}

    def open(self, scope: Scope) -> HeldBody:
        """For the body of one request."""
        return HeldBody(self, address_of(scope))

    def _take(self, address: str, size: int) -> ApiError | None:
        """size: bytes, below 0 to give back. Where there is no room, nothing changes."""
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
    """What one body takes, until it is closed."""

    def __init__(self, memory: BodyMemory, address: str):
        self._memory = memory
        self._address = address
        self._counted = 0

    def grow(self, size: int) -> ApiError | None:
        """The body has `size` bytes, or will have: why there is no room for it, or None."""
        more = size - FREE - self._counted
        if more <= 0:
            return None
        refusal = self._memory._take(self._address, more)
        if refusal is None:
            self._counted += more
        return refusal

    def close(self) -> None:
        """Nothing of it is held any more. May be called again."""
        self._memory._take(self._address, -self._counted)
        self._counted = 0
