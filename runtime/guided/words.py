"""Turns llguidance's messages about a grammar into texts for our errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorwright.runtime.base.parameter_checks import clipped

if TYPE_CHECKING:
    from tensorwright.runtime.guided.library import LibraryMatcher

NO_TEXT = "no text matches it"


def library_words(matcher: LibraryMatcher) -> str:
    """Returns the reason why a matcher is in error."""
    words = matcher.error.replace("<non-verbose/>", "").strip()
    if words.startswith("NoExtension"):
        return NO_TEXT
    return clipped(words)
