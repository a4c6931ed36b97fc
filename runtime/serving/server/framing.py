"""Bounds the framing of one HTTP request: its head, its chunks, and the bytes that are neither.

The parser takes any number of bytes and headers for a head, any extension of a chunk and any trailer, and a chunk may
hold one byte. Each of these costs work before the server asks for a key.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.serving.server.errors import ApiError

MAX_HEAD = 64 << 10  # bytes of a request's line and headers
MAX_HEADERS = 100  # Each guard looks through all headers.
FREE_CHUNKS, MIN_CHUNK = 1000, 64  # After FREE_CHUNKS chunks, a body's chunks must have MIN_CHUNK bytes on average.
MAX_EXTRA, EXTRA_PER_CHUNK = 16 << 10, 16  # bytes of a body that are no content; each chunk adds some for its size line
TOO_LARGE = "headers_too_large"


class FramingError(Exception):
    """A request is framed wrongly, and its connection cannot be used any more. answer: the error for the client."""

    def __init__(self, answer: ApiError):
        super().__init__(answer.message)
        self.answer = answer


class Framing:
    """Counts the parts of one request after the other, and raises FramingError beyond a bound."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Starts counting a new request."""
        self.in_head = True
        self._wire = self._content = self._chunks = self._headers = 0

    def count_header(self) -> None:
        """Counts another header."""
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise _bad(f"a request must have at most {MAX_HEADERS} headers", 431, TOO_LARGE)

    def end_head(self, version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Checks a complete head. RFC 9112 asks for most of this: section 3.2 for one Host, 6.1 for codings.

        headers: pairs of a name in small letters and a value.
        """
        if version not in ("1.0", "1.1"):
            raise _bad(f"HTTP/1.1 is spoken here, got HTTP/{version}", 505)
        hosts = sum(name == b"host" for name, _ in headers)
        if hosts > 1 or (version == "1.1" and not hosts):
            raise _bad(f"a request must have one Host header, got {hosts}")
        codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version != "1.1"):
            raise _bad('Transfer-Encoding must be "chunked", of HTTP/1.1')
        if codings and any(name == b"content-length" for name, _ in headers):
            raise _bad("a request must not have both Content-Length and Transfer-Encoding")
        self.in_head = False
        self._wire = 0

    def count_wire(self, size: int) -> None:
        """Counts `size` received bytes of any kind."""
        self._wire += size
        if self.in_head and self._wire > MAX_HEAD:
            raise _bad(f"the request's line and headers must have at most {MAX_HEAD} bytes", 431, TOO_LARGE)
        if not self.in_head and self._wire - self._content > MAX_EXTRA + EXTRA_PER_CHUNK * self._chunks:
            raise _bad("the extensions of chunks and the trailers are too long")

    def count_content(self, size: int) -> None:
        """Counts `size` bytes of the body's content among the received bytes."""
        self._content += size

    def count_chunk(self) -> None:
        """Counts another chunk."""
        self._chunks += 1
        if self._chunks > FREE_CHUNKS and self._content < MIN_CHUNK * (self._chunks - 1):
            raise _bad(f"more than {FREE_CHUNKS} chunks of a body must have {MIN_CHUNK} bytes on average")


def _bad(message: str, status: int = 400, code: str | None = None) -> FramingError:
    return FramingError(ApiError(status, message, code=code, headers={"connection": "close"}))
