"""What llguidance says of a grammar, as an error tells it."""

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
    """Grammars are long, and messages quote them."""
    return words if len(words) <= MOST_WORDS else words[:MOST_WORDS] + "..."
