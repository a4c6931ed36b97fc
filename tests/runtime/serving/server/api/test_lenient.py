"""Fields that the server does not know, or that change nothing, are left out and named; with --strict they are not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from support.waiting import PATIENCE
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.serving.server.lenient_fields import describe, leave_out

COMPLETION: dict[str, Any] = {"model": "pico", "prompt": "x", "max_tokens": 1}
CHAT: dict[str, Any] = {"model": "pico", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
HEADER = "x-tensorwright-ignored"
SENT: list[tuple[str, dict[str, Any], str]] = [
    # the path, the body, what is left out
    ("/v1/completions", COMPLETION | {"temprature": 1}, "temprature"),
    ("/v1/completions", COMPLETION | {"messages": [], "n": 1}, "messages"),
    ("/v1/chat/completions", CHAT | {"metadata": {"a": "b"}, "store": True, "verbosity": "low"},
     "metadata, store, verbosity"),
    ("/v1/chat/completions", CHAT | {"service_tier": "flex"}, "service_tier"),
    ("/v1/chat/completions", CHAT | {"prompt_cache_key": "k", "safety_identifier": "i", "user": "u"},
     "prompt_cache_key, safety_identifier"),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "x", "odd": 1, "annotations": []}] * 3},
     "messages[].odd, messages[].annotations"),
    ("/v1/chat/completions",
     CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache": {}}]}]},
     "messages[].content[].cache"),
    ("/v1/chat/completions", CHAT | {"reasoning_effort": "low"}, "reasoning_effort"),
    ("/v1/chat/completions", CHAT | {"response_format": {"type": "text", "x": 1}}, "response_format.x"),
    ("/tokenize", {"model": "pico", "prompt": "x", "odd": 1}, "odd"),
    ("/v1/completions", COMPLETION | {"odd\r\nname: é": 1}, "(unprintable)"),
    ("/v1/completions", COMPLETION | {f"odd_{number:02}": 1 for number in range(30)},
     ", ".join(f"odd_{number:02}" for number in range(20)) + ", and 10 more"),
]  # fmt: skip


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)


@pytest.mark.parametrize(("path", "body", "ignored"), SENT)
def test_what_changes_nothing_is_left_out_and_named(url: str, path: str, body: dict[str, Any], ignored: str) -> None:
    answer = post(url, path, body)
    assert (answer.status_code, answer.headers[HEADER]) == (200, ignored)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("path", "body", "ignored"), SENT)
def test_a_strict_server_refuses_it(url: str, path: str, body: dict[str, Any], ignored: str) -> None:
    assert post(url, path, body).status_code == 400


def test_a_stream_tells_of_it_too(url: str) -> None:
    assert post(url, "/v1/chat/completions", CHAT | {"stream": True, "odd": 1}).headers[HEADER] == "odd"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"metadata": None, "store": False, "service_tier": "auto", "verbosity": None},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"odd": 1, "title": "x"}}}},
        {"chat_template_kwargs": {"tone": "calm"}},
    ],
)
def test_an_answer_without_the_header_left_out_nothing(url: str, fields: dict[str, Any]) -> None:
    answer = post(url, "/v1/chat/completions", CHAT | fields)
    assert HEADER not in answer.headers


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": "hot", "odd": 1}, "temperature"),
        ({"audio": {}}, "audio is not supported"),
        ({"prediction": {"type": "content"}}, "prediction is not supported"),
        ({"web_search_options": {}}, "web_search_options is not supported"),
        ({"functions": []}, "functions is not supported"),
        ({f"odd_{number}": 1 for number in range(200)}, "there must be at most 100 keys"),
        ({"messages": [{"role": "user", "content": "x", "audio": {"id": "a"}}]}, "audio is not supported"),
    ],
)
def test_wrong_values_and_what_callers_rely_on_stay_errors(url: str, fields: dict[str, Any], named: str) -> None:
    answer = post(url, "/v1/chat/completions", CHAT | fields)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


def test_each_name_is_told_once_however_often_it_comes() -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x", "odd": 1} for _ in range(2000)]}
    assert leave_out(body, ChatCompletionRequest) == ["messages[].odd"]
    assert body["messages"][7] == {"role": "user", "content": "x"}
    assert leave_out(["no", "object"], ChatCompletionRequest) == []
    assert describe(["a" * 200]) == "(unprintable)"
