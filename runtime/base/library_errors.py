"""What a request ends with where a library fails at it in a way that it does not foresee."""

from __future__ import annotations

from tensorwright.errors import LibraryError


def as_error(error: BaseException) -> Exception:
    """What a request may end with: the error itself, or the LibraryError that tells of a panic or an exit."""
    if isinstance(error, Exception):
        return error
    typed = LibraryError(
        f"a library failed at this request ({type(error).__name__}: {error}); other requests go on, report what this "
        "one held"
    )
    typed.__cause__ = error
    return typed
