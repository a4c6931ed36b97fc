"""Turns an unforeseen failure of a library into an error with which a request can end."""

from __future__ import annotations

from tensorwright.errors import LibraryError


def as_error(error: BaseException) -> Exception:
    """Returns the error if it is an Exception; for a panic or an exit, returns a LibraryError that describes it."""
    if isinstance(error, Exception):
        return error
    typed = LibraryError(
        f"a library failed at this request ({type(error).__name__}: {error}); other requests go on, report what this "
        "one held"
    )
    typed.__cause__ = error
    return typed
