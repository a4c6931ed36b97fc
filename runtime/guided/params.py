"""Defines GuidedDecodingParams, which say what form a request's output must have."""

from __future__ import annotations

import json as json_text
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.base.parameter_checks import shown
from tensorwright.runtime.base.request_bounds import GRAMMAR_CHOICES, GRAMMAR_LENGTH, SCHEMA_LENGTH

KINDS = ("json", "json_object", "regex", "choice", "grammar")
JSON_KINDS = ("json", "json_object")


@dataclass(frozen=True)
class GuidedDecodingParams(StrictKeywords):
    """The form that a request's output must have. It is immutable, and needs the extra `guided`.

    Exactly one of json, json_object, regex, choice and grammar must be given.

    json: a JSON schema, as a dict or as text; the output is a JSON value that the schema admits. Properties come in the
        schema's order.
    json_object: True means that the output is any JSON object.
    regex: a regular expression that the whole output matches, in the syntax of Rust's regex crate, without
        look-around.
    choice: a list of texts; the output is one of them.
    grammar: a context-free grammar, as EBNF (`root ::= ...`, as llama.cpp and xgrammar take it) or as Lark
        (`start: ...`). A grammar that contains `::=` is EBNF.
    whitespace_pattern: with json or json_object, a regular expression for the blanks at each place where JSON may have
        them, such as "" (the shortest JSON), "[ ]?" or "[\\n ]*"; it may admit only JSON's four blanks. None means up
        to 20 of these.
    frame: a Lark grammar of the whole output, in which `@form` stands for the text that has the form: free text, the
        model's thinking or calls of tools may come before it, or in its place. None means that the form is all.

    request_bounds.py bounds the length of each text and the number of choices.

    An impossible value raises InvalidRequestError, an unknown keyword raises InvalidOptionError. The engine checks
    whether it can follow the grammar when a request is submitted.
    """

    json: str | dict[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    grammar: str | None = None
    whitespace_pattern: str | None = None
    frame: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise _wrong("json_object", "True or False", self.json_object)
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            came = " and ".join(given) or "none"
            raise InvalidRequestError(
                f"GuidedDecodingParams: exactly one of {', '.join(KINDS)} must be given, got {came}"
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise _wrong(name, "a text that is not blank", value)
        if self.frame is not None and not (isinstance(self.frame, str) and "@form" in self.frame):
            raise _wrong("frame", "a Lark grammar that contains @form, or None", self.frame)
        if self.whitespace_pattern is not None:
            if not isinstance(self.whitespace_pattern, str):
                raise _wrong("whitespace_pattern", "a text or None", self.whitespace_pattern)
            if self.kind not in JSON_KINDS:
                raise InvalidRequestError(
                    "GuidedDecodingParams: whitespace_pattern must come with "
                    f"{' or '.join(JSON_KINDS)}, got {self.kind}"
                )
        own = sum(map(len, self.choice)) if self.choice is not None else len(self.text)
        _check_length(self.kind, own)
        _check_length("whitespace_pattern", len(self.whitespace_pattern or ""))
        _check_length("frame", len(self.frame or ""))

    @property
    def kind(self) -> str:
        """The name of the field that was given, one of KINDS."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    @property
    def text(self) -> str:
        """The value that was given, as text."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else json_text.dumps(value)


def _schema_text(schema: Any) -> str:
    """Returns the schema in one fixed spelling. The order of keys stays, because the order of properties has a
    meaning."""
    must = "a JSON schema, as a dict or as the text of a JSON object"
    if isinstance(schema, str):
        _check_length("json, blanks included,", len(schema), SCHEMA_LENGTH)
    try:
        parsed = json_text.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, dict):
            raise _wrong("json", must, schema)
        return json_text.dumps(parsed, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"GuidedDecodingParams: json must be {must}: {error}") from error


def _choices(choice: Any) -> tuple[str, ...]:
    must = "a list of texts, none empty"
    if not isinstance(choice, (list, tuple)) or not choice:
        raise _wrong("choice", must, choice)
    if len(choice) > GRAMMAR_CHOICES:
        raise InvalidRequestError(
            f"GuidedDecodingParams: choice must have at most {GRAMMAR_CHOICES} texts, got {len(choice)}"
        )
    for text in choice:
        if not isinstance(text, str) or not text:
            raise _wrong("choice", must, text)
    return tuple(choice)


def _check_length(name: str, length: int, most: int = GRAMMAR_LENGTH) -> None:
    if length > most:
        raise InvalidRequestError(f"GuidedDecodingParams: {name} must have at most {most} characters, got {length}")


def _wrong(name: str, must: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(f"GuidedDecodingParams: {name} must be {must}, got {shown(value)}")
