"""GuidedDecodingParams: what it refuses by itself, and that it can be a key."""

from __future__ import annotations

from typing import Any

import pytest

from tensorwright import GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.runtime.base.request_bounds import GRAMMAR_CHOICES as CHOICES
from tensorwright.runtime.base.request_bounds import GRAMMAR_LENGTH as MOST


def deep() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of json, json_object, regex, choice, grammar must be given, got none"),
        ({"json_object": False}, "got none"),
        ({"regex": "a", "choice": ["a"]}, "got regex and choice"),
        ({"json": "{}", "json_object": True}, "got json and json_object"),
        ({"json_object": 1}, "json_object must be True or False, got 1"),
        ({"json": "{"}, "json must be a JSON schema, as a dict or as the text of a JSON object: Expecting"),
        ({"json": "[]"}, r"json must be a JSON schema.*got '\[\]'"),
        ({"json": 5}, "json must be a JSON schema.*got 5"),
        ({"json": {"a": {1, 2}}}, "not JSON serializable"),
        ({"json": {"minimum": float("nan")}}, "Out of range float values"),
        ({"json": "[" * 100_000}, "recursion"),
        ({"json": deep()}, "recursion"),
        ({"regex": ""}, "regex must be a text that is not blank, got ''"),
        ({"regex": 5}, "regex must be a text"),
        ({"grammar": " \n"}, "grammar must be a text"),
        ({"choice": []}, r"choice must be a list of texts, none empty, got \[\]"),
        ({"choice": "abc"}, "choice must be a list of texts"),
        ({"choice": ["a", ""]}, "choice must be a list of texts"),
        ({"choice": ["a", 5]}, "choice must be a list of texts, none empty, got 5"),
        (
            {"regex": "a" * (MOST + 1)},
            f"regex must have at most {MOST} characters, got {MOST + 1}",
        ),
        (
            {"choice": ["a" * MOST, "b"]},
            f"choice must have at most {MOST} characters, got {MOST + 1}",
        ),
        ({"choice": ["a"] * (CHOICES + 1)}, f"choice must have at most {CHOICES} texts, got"),
        ({"json": "{" + " " * 4 * MOST + "}"}, "json, blanks included, must have at most"),
        (
            {"regex": "a", "frame": "start: a"},
            "frame must be a Lark grammar that contains @form, or None, got 'start: a'",
        ),
        ({"regex": "a", "frame": 5}, "frame must be a Lark grammar that contains @form, or None, got 5"),
        ({"regex": "a", "frame": "@form" + " " * MOST}, "frame must have at most"),
        ({"frame": "start: @form"}, "exactly one of json, .* must be given, got none"),
        ({"whitespace_pattern": " "}, "exactly one of json, .* must be given, got none"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern must come with json or json_object, got regex"),
        ({"json_object": True, "whitespace_pattern": 5}, "whitespace_pattern must be a text or None, got 5"),
        (
            {"json_object": True, "whitespace_pattern": " " * (MOST + 1)},
            "whitespace_pattern must have at most",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        GuidedDecodingParams(**given)


def test_unknown_keyword() -> None:
    with pytest.raises(InvalidOptionError, match="no option 'rexeg'; did you mean regex"):
        GuidedDecodingParams(rexeg="a")  # type: ignore[call-arg]


def test_dict_and_text_are_the_same() -> None:
    one = GuidedDecodingParams(json={"type": "object", "properties": {"b": {}, "a": {}}})
    other = GuidedDecodingParams(json='{"type": "object",\n "properties": {"b": {}, "a": {}}}')
    assert one == other
    assert hash(one) == hash(other)
    assert one.text == '{"type":"object","properties":{"b":{},"a":{}}}'
    assert GuidedDecodingParams(choice=["a", "b"]) == GuidedDecodingParams(choice=("a", "b"))
    assert SamplingParams(guided_decoding=one) == SamplingParams(guided_decoding=other)
    assert hash(SamplingParams(guided_decoding=one)) == hash(SamplingParams(guided_decoding=other))


def test_sampling_params_refuse_anything_else() -> None:
    with pytest.raises(InvalidRequestError, match=r"guided_decoding must be GuidedDecodingParams or None, got \{'json"):
        SamplingParams(guided_decoding={"json": {}})  # type: ignore[arg-type]
