"""Serves the page at /: a chat with this server's engines, and their live figures.

The page is plain files of the folder web/, and nothing in it is particular to a server, so it needs no key. It asks the
other paths for what it shows, with the key that its user gives.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from tensorwright.runtime.serving.server.errors import ApiError

FOLDER = Path(__file__).with_name("web")
INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The files of web/ with one of these suffixes are served, and no others."""
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The page loads files of this server alone, runs no text as a script, and no other page shows it in a frame."""
_HEADERS = {
    "Cache-Control": "no-cache",  # A browser keeps the files, and asks each time whether they have changed.
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class PageFile:
    """One file of the page: its bytes, its media type, and the tag by which a browser recognizes them."""

    content: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Returns the page's files by their names. They are read once, and stay in memory."""
    files = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            files[path.name] = PageFile(content, MEDIA_TYPES[path.suffix], etag)
    return files


def page_paths() -> tuple[str, ...]:
    """Returns the paths of the page and of its files."""
    return ("/", *(f"/page/{name}" for name in page_files() if name != INDEX))


@router.get("/")
async def show_page(request: Request) -> Response:
    """Answers with the page."""
    return _answer(request, page_files()[INDEX])


@router.get("/page/{name}")
async def show_file(name: str, request: Request) -> Response:
    """Answers with one file of the page."""
    file = page_files().get(name)
    if file is None or name == INDEX:
        return ApiError(404, "the page has no such file", code="not_found").response()
    return _answer(request, file)


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
