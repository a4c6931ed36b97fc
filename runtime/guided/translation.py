"""Translates GuidedDecodingParams into a grammar of llguidance.

It reads texts that strangers wrote, so it runs in a process that may be ended at any time (compile_child.py). It
imports little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.parameter_checks import clipped
from tensorwright.runtime.guided.library import LibraryMatcher, LibraryTokens
from tensorwright.runtime.guided.params import JSON_KINDS, GuidedDecodingParams
from tensorwright.runtime.guided.words import NO_TEXT, library_words

BLANKS = r"[\x20\x0A\x0D\x09]"  # JSON's four blanks
WHITESPACE = BLANKS + "{0,20}"
"""The default of whitespace_pattern. Without a bound, a model that is unsure could generate blanks without end."""

RULE = re.compile(r"^[^\S\n]*[\w-]+[^\S\n]*::=", re.MULTILINE)
"""Matches the start of a rule of EBNF. No part of it crosses the end of a line, so a search takes linear time."""
ESCAPE = re.compile(r"\\(?:\\|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def name_of(params: GuidedDecodingParams) -> str:
    """Returns the name of the parameter for error messages."""
    return f"guided_decoding: {params.kind}"


def translate(tokens: LibraryTokens, params: GuidedDecodingParams, limits: dict[str, int]) -> str:
    """Returns the grammar in the library's JSON form, which may hold any character. Raises InvalidRequestError."""
    if params.whitespace_pattern:
        _check_whitespace(tokens, params.whitespace_pattern, limits)
    try:
        grammar = _library_grammar(tokens.library.python, params)
        return grammar if params.frame is None else _framed(grammar, params.frame)
    except Exception as error:  # the library's converters raise plain Exceptions
        raise InvalidRequestError(f"{name_of(params)} cannot be followed: {clipped(str(error))}") from error


def compiled(
    tokens: LibraryTokens,
    text: str,
    name: str,
    limits: dict[str, int],
    first_mask: Callable[[LibraryMatcher], bool] = LibraryMatcher.has_mask,
) -> LibraryMatcher:
    """Compiles a grammar that translate() made, and computes the mask of its first token.

    first_mask: computes that mask. Raises InvalidRequestError if the library refuses the grammar, or cannot compute the
    mask.
    """
    matcher = LibraryMatcher.compile(tokens, text, limits)
    if not matcher.is_error:
        first_mask(matcher)
    if matcher.is_error:
        raise InvalidRequestError(f"{name} cannot be followed: {library_words(matcher)}")
    return matcher


def _library_grammar(library: Any, params: GuidedDecodingParams) -> str:
    """Returns the grammar in the library's JSON form. library: the library's Python module."""
    make = library.LLMatcher
    if params.kind in JSON_KINDS:
        schema = params.text if params.kind == "json" else '{"type":"object"}'
        pattern = WHITESPACE if params.whitespace_pattern is None else params.whitespace_pattern
        # With lenient=False the library refuses unknown keywords of JSON schemas.
        return make.grammar_from_json_schema(schema, overrides={"lenient": False, "whitespace_pattern": pattern})
    if params.kind == "regex":
        return make.grammar_from_regex(params.text)
    if params.kind == "choice":
        quoted = [json.dumps(text, ensure_ascii=False) for text in params.choice or ()]
        # All choices are one terminal, so a row of the parser has one item.
        return _as_json("start: CHOICE\nCHOICE: " + " | ".join(quoted))
    return _as_json(_lark(params.text))


def _framed(grammar: str, frame: str) -> str:
    """Returns a grammar whose start is the frame, and in which the given grammar is called "form"."""
    frame.encode()  # raises for a text that is not valid Unicode
    form, *others = json.loads(grammar)["grammars"]
    return json.dumps({"grammars": [{"name": "frame", "lark_grammar": frame}, {**form, "name": "form"}, *others]})


def _check_whitespace(tokens: LibraryTokens, pattern: str, limits: dict[str, int]) -> None:
    """Raises InvalidRequestError if the pattern admits anything but JSON's blanks.

    To find that out, it compiles the grammar of all texts that match the pattern and are not JSON's blanks. That
    grammar must admit no text.
    """
    name = "guided_decoding: whitespace_pattern"
    try:
        regex = tokens.library.python.regex_to_lark(pattern)
        others = _as_json(f"start: OTHERS\nOTHERS: /{regex}/ & ~/{BLANKS}*/")
    except ValueError as error:
        raise InvalidRequestError(f"{name} cannot be followed: {clipped(str(error))}") from error
    matcher = LibraryMatcher.compile(tokens, others, limits)
    if not matcher.is_error and matcher.has_mask():
        raise InvalidRequestError(
            f"{name} must admit JSON's blanks alone, which are the space, \\n, \\r and \\t, got {clipped(pattern)!r}"
        )
    if (words := library_words(matcher)) != NO_TEXT:
        raise InvalidRequestError(f"{name} cannot be followed: {words}")


def _as_json(lark: str) -> str:
    lark.encode()  # raises for a text that is not valid Unicode
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def _lark(text: str) -> str:
    if not RULE.search(text):
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    return gbnf_to_lark(ESCAPE.sub(_plain, text))


def _plain(escape: re.Match[str]) -> str:
    """Returns the character of an escape. The library's converter leaves some escapes that Lark does not know."""
    digits = escape[1] or escape[2] or escape[3]
    if digits is None:
        return escape[0]
    character = chr(int(digits, 16))
    if character in '"\\[]':
        return "\\" + character
    return character if character.isprintable() and character not in "-^/" else escape[0]
