"""What others say of a request, as an error tells it: llguidance of a grammar, a template of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorwright.runtime.guided.library import LibraryMatcher

NO_TEXT = "no text matches it"
MOST_WORDS = 600  # characters of the library's message


def library_words(matcher: LibraryMatcher) -> str:
    """Why a matcher gave up."""
    words = matcher.error.replace("<non-verbose/>", "").strip()
    if words.startswith("NoExtension"):
        return NO_TEXT
    return clipped(words)


def clipped(words: str) -> str:
    """As our messages tell them: grammars are long, and what strangers wrote may be no Unicode text."""
    text = words[: MOST_WORDS + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(words) <= MOST_WORDS else text[:MOST_WORDS] + "..."
