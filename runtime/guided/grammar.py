"""From what a request asks for to a compiled grammar, through llguidance."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided.library import LibraryMatcher
from tensorwright.runtime.guided.matcher import NO_TEXT, GrammarMatcher, clipped, library_words
from tensorwright.runtime.guided.params import JSON_KINDS, GuidedDecodingParams

if TYPE_CHECKING:
    from tensorwright.runtime.guided.vocabulary import GuidedVocabulary

LIMITS: dict[str, int] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 250_000,
    "max_grammar_size": 500_000,
}
"""What one grammar may cost: some 20 ms to start, 15 ms per mask and 500 MB, in the library's units."""

BLANKS = r"[\x20\x0A\x0D\x09]"  # of JSON
WHITESPACE = BLANKS + "{0,20}"
"""What whitespace_pattern is by default: unbounded blanks would let a model that is unsure make nothing else."""

RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
ESCAPE = re.compile(r"\\(?:\\|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


class Grammar:
    """Shared by the requests that ask for the same; each of their completions starts a matcher of its own."""

    def __init__(self, vocabulary: GuidedVocabulary, matcher: LibraryMatcher, name: str):
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._name = name
        self._lock = threading.Lock()
        self._row = np.zeros(vocabulary.library_words, dtype=np.uint32)
        matcher.compute_mask(self._row)

    def first_mask(self, ignore_eos: bool) -> NDArray[np.uint32]:
        """Of the first token. InvalidRequestError if there is none."""
        mask = self._vocabulary.trim(self._row, self._ends_by_token(ignore_eos))
        if not mask.any():
            raise InvalidRequestError(
                f"{self._name}: no token of the model begins a text that it admits; change it"
                + ("" if self._ends_by_token(ignore_eos) else ", or let the end-of-sequence token end it")
            )
        return mask

    def start(self, ignore_eos: bool) -> GrammarMatcher:
        with self._lock:
            matcher = self._matcher.copy()
        return GrammarMatcher(self._vocabulary, matcher, self._ends_by_token(ignore_eos), self._name)

    def _ends_by_token(self, ignore_eos: bool) -> bool:
        """Whether a sampled token ends the completion, or whoever follows the grammar has to."""
        return bool(self._vocabulary.eos) and not ignore_eos


def compile_grammar(vocabulary: GuidedVocabulary, params: GuidedDecodingParams) -> Grammar:
    name = f"guided_decoding: {params.kind}"
    if params.whitespace_pattern:
        _check_whitespace(vocabulary, params.whitespace_pattern)
    try:
        text = _library_grammar(vocabulary.tokens.library.python, params)
    except Exception as error:  # of the library's converters, which raise the plain class
        raise InvalidRequestError(f"{name} cannot be followed: {clipped(str(error))}") from error
    matcher = LibraryMatcher.compile(vocabulary.tokens, text, LIMITS)
    if not matcher.is_error:
        grammar = Grammar(vocabulary, matcher, name)
    if matcher.is_error:
        raise InvalidRequestError(f"{name} cannot be followed: {library_words(matcher)}")
    return grammar


def _library_grammar(library: Any, params: GuidedDecodingParams) -> str:
    """In the library's JSON form, which may hold any character. library: its Python module."""
    make = library.LLMatcher
    if params.kind in JSON_KINDS:
        schema = params.text if params.kind == "json" else '{"type":"object"}'
        pattern = WHITESPACE if params.whitespace_pattern is None else params.whitespace_pattern
        # Not lenient: unknown keywords are refused.
        return make.grammar_from_json_schema(schema, overrides={"lenient": False, "whitespace_pattern": pattern})
    if params.kind == "regex":
        return make.grammar_from_regex(params.text)
    if params.kind == "choice":
        quoted = [json.dumps(text, ensure_ascii=False) for text in params.choice or ()]
        return _as_json("start: " + " | ".join(quoted))
    return _as_json(_lark(params.text))


def _check_whitespace(vocabulary: GuidedVocabulary, pattern: str) -> None:
    """It must admit nothing that is not JSON: then no text is in the pattern and outside of JSON's blanks."""
    name = "guided_decoding: whitespace_pattern"
    try:
        regex = vocabulary.tokens.library.python.regex_to_lark(pattern)
        others = _as_json(f"start: OTHERS\nOTHERS: /{regex}/ & ~/{BLANKS}*/")
    except ValueError as error:
        raise InvalidRequestError(f"{name} cannot be followed: {clipped(str(error))}") from error
    matcher = LibraryMatcher.compile(vocabulary.tokens, others, LIMITS)
    if not matcher.is_error and matcher.compute_mask(np.zeros(vocabulary.library_words, dtype=np.uint32)):
        raise InvalidRequestError(
            f"{name} must admit JSON's blanks alone, which are the space, \\n, \\r and \\t, got {clipped(pattern)!r}"
        )
    if (words := library_words(matcher)) != NO_TEXT:
        raise InvalidRequestError(f"{name} cannot be followed: {words}")


def _as_json(lark: str) -> str:
    lark.encode()  # raises for what is no Unicode text
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def _lark(text: str) -> str:
    if not RULE.search(text):
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    return gbnf_to_lark(ESCAPE.sub(_plain, text))


def _plain(escape: re.Match[str]) -> str:
    """The character itself, for the library's converter spells some escapes as Lark does not know them."""
    digits = escape[1] or escape[2] or escape[3]
    if digits is None:
        return escape[0]
    character = chr(int(digits, 16))
    if character in '"\\[]':
        return "\\" + character
    return character if character.isprintable() and character not in "-^/" else escape[0]
