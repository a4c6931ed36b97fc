"""response_format and guided_* shape the output, at once and streamed."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from support import hostile_grammars as hostile
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.guided import child_link, compile_process
from tensorwright.runtime.guided.params import GuidedDecodingParams

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["read", "write"]}, "fast": {"type": "boolean"}},
    "required": ["name", "fast"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "call", "schema": SCHEMA, "strict": True}}
GRAMMAR = 'root ::= "a" | "b" root'
SHAPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"guided_json": SCHEMA}, {"json": SCHEMA}),
    ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": ""}, {"json": SCHEMA, "whitespace_pattern": ""}),
    ({"response_format": FORMAT, "guided_whitespace_pattern": " ?"}, {"json": SCHEMA, "whitespace_pattern": " ?"}),
    ({"guided_regex": "[a-c]{3,5}"}, {"regex": "[a-c]{3,5}"}),
    ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
    ({"guided_grammar": GRAMMAR}, {"grammar": GRAMMAR}),
    ({"response_format": FORMAT}, {"json": SCHEMA}),
    ({"response_format": {"type": "text"}}, {}),
]


@pytest.mark.parametrize(
    ("fields", "keywords"), SHAPES, ids=[f"{'-'.join(fields)}{at}" for at, (fields, _) in enumerate(SHAPES)]
)
def test_the_text_is_that_of_the_python_api(
    client: openai.OpenAI, llm: LLM, fields: dict[str, Any], keywords: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"model": "pico", "prompt": "x = ", "seed": 3, "max_tokens": 60, "extra_body": fields}
    guided = {"guided_decoding": GuidedDecodingParams(**keywords)} if keywords else {}
    expected = llm.generate("x = ", SamplingParams(seed=3, max_tokens=60, **guided)).outputs[0]
    [choice] = client.completions.create(**body).choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason)
    chunks = list(client.completions.create(stream=True, **body))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text


def test_a_chat_answers_in_the_schema(client: openai.OpenAI) -> None:
    talk: Any = [{"role": "user", "content": "call it"}]
    answer = client.chat.completions.create(model="pico", messages=talk, response_format=FORMAT, n=3, seed=1)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        value = json.loads(choice.message.content or "")
        assert value["name"] in ("read", "write")
        assert isinstance(value["fast"], bool)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "nothing"}},
        {"guided_json": SCHEMA, "guided_whitespace_pattern": "x"},
        {"guided_regex": "a", "guided_whitespace_pattern": ""},
        {"guided_whitespace_pattern": ""},
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_refused(url: str, fields: dict[str, Any]) -> None:
    body = {"model": "pico", "prompt": "x", **fields}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("shape", hostile.OF_BOTH_KINDS)
def test_a_grammar_that_would_end_the_server_is_refused(url: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any length: what is too long by itself, and what is not. Everybody else is answered afterwards. The tests of
    guided/test_compiling.py have the chains of all shapes."""

    def ask(limit: float, **asked: str) -> int:
        """limit: seconds that the grammar may take, the start of the process that compiles it included."""
        monkeypatch.setattr(compile_process, "LIMIT_S", limit)
        body = {"model": "pico", "prompt": "x", "max_tokens": 3, **asked}
        return httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).status_code

    def refused(asked: dict[str, str]) -> int:
        """The status, but 0 if this process was kept from beginning for most of the second."""
        status = ask(1.0, **asked)
        return 0 if status == 429 else status

    for links in (16_000, hostile.LONGEST[shape]):
        assert ask(PATIENCE, guided_regex=f"[a-z]{{3}}|{shape}{links}") == 200
        hostile_fields = {f"guided_{name}": text for name, text in hostile.chain(shape, links).items()}
        assert wait_until(partial(refused, hostile_fields)) in (400, 413)
        assert httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    assert ask(PATIENCE, guided_regex=f"[a-z]{{3}}|{shape}") == 200


def test_a_compiler_that_is_killed_is_not_the_engines_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is told to come again, and nobody that the engine stopped."""

    def killed(*given: Any) -> Any:
        raise child_link.Gone("it ended without a word")

    asked = {"model": "pico", "prompt": "x", "max_tokens": 3, "guided_regex": "[x-z]{3}"}
    with monkeypatch.context() as patch:
        patch.setattr(child_link.Child, "ask", killed)
        answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=PATIENCE)
        assert httpx.get(f"{url}/ready", timeout=PATIENCE).status_code == 200
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"], answer.headers["retry-after"]) == (
        503, "service_unavailable_error", "temporarily_unavailable", "1",
    )  # fmt: skip
    assert error["message"].endswith("try again later")
    assert httpx.post(f"{url}/v1/completions", json=asked, timeout=PATIENCE).status_code == 200
