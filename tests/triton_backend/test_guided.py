"""TensorRT-LLM's guided decoding inputs, through the model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from support.fake_triton import Request

SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
)


@pytest.mark.parametrize(
    ("kind", "guide", "form"),
    [
        ("json_schema", SCHEMA, r'\{\s*"a"\s*:\s*(true|false)\s*\}'),
        ("regex", "[ab]{3}-[0-9]{2}", "[ab]{3}-[0-9]{2}"),
        ("ebnf_grammar", 'root ::= "yes" | "no"', "yes|no"),
    ],
)
def test_the_output_has_the_guides_form(ask: Callable[..., Request], kind: str, guide: str, form: str) -> None:
    guided = {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide}
    text = ask(text_input="x = ", max_tokens=48, exclude_input_in_output=True, **guided)
    assert re.fullmatch(form, text.sender.wait()[0]["text_output"][0].decode())
    tokens = ask(input_ids=[5], input_lengths=1, request_output_len=48, return_finish_reason=True, **guided)
    assert tokens.sender.wait()[0]["finish_reason"][0] == b"stop"


def test_any_json_object(ask: Callable[..., Request]) -> None:
    request = ask(text_input="x", max_tokens=3, exclude_input_in_output=True, guided_decoding_guide_type="json")
    assert request.sender.wait()[0]["text_output"][0].decode().lstrip().startswith("{")


def test_what_stands_between_the_parts_of_json(ask: Callable[..., Request]) -> None:
    guided = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": SCHEMA}
    text = ask(
        text_input="x = ",
        max_tokens=48,
        exclude_input_in_output=True,
        guided_decoding_whitespace_pattern="()",
        **guided,
    )
    assert re.fullmatch(r'\{"a":(true|false)\}', text.sender.wait()[0]["text_output"][0].decode())
    wrong = ask(text_input="x", max_tokens=3, guided_decoding_whitespace_pattern=" ")
    assert wrong.sender.wait() == []
    assert "needs 'guided_decoding_guide_type'" in str(wrong.sender.errors[0])


def test_a_broken_guide_is_the_requests_own_error(ask: Callable[..., Request]) -> None:
    guided = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "(("}
    request = ask(text_input="x", max_tokens=3, **guided)
    assert request.sender.wait() == []
    assert len(request.sender.errors) == 1
