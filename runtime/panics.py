"""A panic of a library that is written in Rust (tokenizers, llguidance): pyo3 raises it as a BaseException, so that
`except Exception` lets it through."""

from __future__ import annotations

from tensorwright.errors import LibraryError


def is_panic(error: BaseException) -> bool:
    """The class has no place to be imported from: each library makes its own."""
    return type(error).__module__ == "pyo3_runtime" and not isinstance(error, Exception)


def as_error(error: BaseException) -> Exception:
    """What a request may end with: the error itself, or the LibraryError that tells of a panic or an exit."""
    if isinstance(error, Exception):
        return error
    told = LibraryError(
        f"a library failed at this request ({type(error).__name__}: {error}); other requests go on, report what this "
        "one held"
    )
    told.__cause__ = error
    return told
