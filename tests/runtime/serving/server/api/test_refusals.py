"""What is refused, by name, with OpenAI's form of error and the right code; and that the server goes on after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from support.waiting import PATIENCE
from tensorwright import LLM

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
BASE: dict[str, dict[str, Any]] = {
    COMPLETION: {"model": "pico", "prompt": "x", "max_tokens": 1},
    CHAT: {"model": "pico", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/tokenize": {"model": "pico"},
    "/detokenize": {"model": "pico"},
}
USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{**USER, **fields}]}


# path, fields, what the message or the parameter must name
BOTH: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "temprature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 64}, "n must be at most max_batch_size"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 3]}, "stop"),
    ({"seed": 2**64}, "seed"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"8192": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1e9}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"chunks": 1}}, "chunks"),
    ({"stop_token_ids": [8192]}, "stop_token_ids"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"bad_words": [""]}, "bad_words"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "json_schema"),
    ({"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}}, "json_schema"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json and response_format"),
]
CASES = [(path, *case) for path in (COMPLETION, CHAT) for case in BOTH] + [
    (COMPLETION, {"prompt": []}, "prompt"),
    (COMPLETION, {"prompt": ""}, "prompt"),
    (COMPLETION, {"prompt": ["a", ""]}, "prompt"),
    (COMPLETION, {"prompt": [1, "a"]}, "prompt"),
    (COMPLETION, {"prompt": [[1], []]}, "prompt"),
    (COMPLETION, {"prompt": [8192]}, "prompt_token_ids"),
    (COMPLETION, {"prompt": [-1]}, "prompt_token_ids"),
    (COMPLETION, {"prompt": None}, "prompt"),
    (COMPLETION, {"prompt": "\ud800"}, "Unicode"),
    (COMPLETION, {"suffix": "a"}, "suffix is not supported by this server: nothing is written that must lead"),
    (COMPLETION, {"logits_processors": ["os.system"]}, "logits_processors is not supported"),
    (COMPLETION, {"typical_p": 0}, "typical_p"),
    (COMPLETION, {"dry_sequence_breakers": ["a" * 41]}, "dry_sequence_breakers"),
    (COMPLETION, {"best_of": 2}, "best_of"),
    (COMPLETION, {"best_of": 1, "n": 2}, "best_of"),
    (COMPLETION, {"best_of": 1, "n": 2, "use_beam_search": True}, "best_of must be at least n"),
    (COMPLETION, {"best_of": 4, "use_beam_search": True, "stream": True}, "use_beam_search must come without stream"),
    (COMPLETION, {"best_of": 4, "use_beam_search": True, "temperature": 0.5}, "temperature must be left out"),
    (COMPLETION, {"best_of": 4, "use_beam_search": True, "stop": "a"}, "stop must be left out"),
    (COMPLETION, {"length_penalty": 2.0}, "length_penalty must come with use_beam_search"),
    (COMPLETION, {"best_of": 2, "use_beam_search": True, "early_stopping": "soon"}, "early_stopping"),
    (COMPLETION, {"logprobs": 21}, "logprobs"),
    (COMPLETION, {"logprobs": True}, "logprobs"),
    (COMPLETION, {"max_tokens": 0}, "max_tokens"),
    (COMPLETION, {"messages": []}, "messages"),
    (CHAT, {"max_completion_tokens": 2}, "max_completion_tokens"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"logprobs": 1}, "logprobs"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "user"}]}, "content"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id must come with the role tool"),
    (CHAT, {"messages": [{"role": "function", "content": "x"}]}, "role"),
    (CHAT, message(content=None), "content must be a text or a list of text parts"),
    (CHAT, message(tool_call_id="a"), "tool_call_id must come with the role tool"),
    (CHAT, message(reasoning_content="a"), "reasoning_content must come with the role assistant"),
    (CHAT, message(content=[{"type": "image_url", "image_url": {"url": "http://x"}}]), "image_url"),
    (CHAT, message(content=[{"type": "input_audio", "input_audio": {}}]), "input_audio"),
    (CHAT, message(content=[{"type": "text", "text": "x", "more": 1}]), "more"),
    (CHAT, message(content="\ud800"), "Unicode"),
    (CHAT, message(name="Ann"), "messages[0] has a name, 'Ann', which the chat template does not read"),
    (CHAT, message(tool_calls=[CALL]), "tool_calls and reasoning_content must come with the role assistant"),
    (CHAT, message(role="assistant", tool_calls=[{"id": "a"}]), "function"),
    (CHAT, message(role="assistant", tool_calls=[CALL]), "tool_calls, which the chat template does not read"),
    (CHAT, message(annotations=[]), "annotations is not supported"),
    (CHAT, {"tools": [TOOL]}, "the chat template shows no known format of calls"),
    (CHAT, {"tools": [{"type": "web_search"}]}, "tools.0.type"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]: the name must be"),
    (CHAT, {"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
    (CHAT, {"tool_choice": "required"}, "tool_choice must come with tools"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "one of the tools (f)"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "allowed_tools must come with the type"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
    (CHAT, {"thinking_token_budget": 5}, "thinking_token_budget"),
    (CHAT, {"thinking_token_budget": -1}, "thinking_token_budget"),
    (CHAT, {"metadata": {}}, "metadata is not supported"),
    (CHAT, {"functions": []}, "functions is not supported"),
    (CHAT, {"audio": {}}, "audio is not supported"),
    (CHAT, {"modalities": ["audio"]}, "modalities"),
    (CHAT, {"store": True}, "store"),
    (CHAT, {"reasoning_effort": "much"}, "reasoning_effort"),
    (CHAT, {"reasoning_effort": "low"}, "reasoning_effort: this model's chat template has no variable for it"),
    (CHAT, {"prompt": "x"}, "prompt"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, "messages"),
    (CHAT, {"chat_template_kwargs": {"tools": [{}]}}, "the chat template never reads tools"),
    ("/tokenize", {}, "prompt and messages"),
    ("/tokenize", {"prompt": "x", "messages": [USER]}, "prompt and messages"),
    ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
    ("/tokenize", {"messages": [USER], "add_special_tokens": True}, "add_special_tokens"),
    ("/tokenize", {"prompt": "\ud800"}, "Unicode"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"),
    ("/detokenize", {"tokens": [8192]}, "tokens"),
]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("path", "fields", "named"), CASES)
def test_it_is_refused_by_name(url: str, path: str, fields: dict[str, Any], named: str, chat_engine: Path) -> None:
    body = json.dumps({**BASE[path], **fields})  # in ASCII, so that a lone surrogate can be sent
    answer = httpx.post(f"{url}{path}", content=body, headers={"content-type": "application/json"}, timeout=PATIENCE)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert named in f"{error['message']} {error['param']}"
    assert str(chat_engine) not in answer.text


@pytest.mark.parametrize("path", BASE)
def test_unknown_models_are_not_found(url: str, path: str) -> None:
    more = {"/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [1]}}.get(path, {})
    answer = httpx.post(f"{url}{path}", json={**BASE[path], **more, "model": "gpt"}, timeout=PATIENCE)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "pico" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "\xff"}', b"null", b"[" * 100000])
def test_bodies_that_are_no_request(url: str, body: bytes) -> None:
    for path in BASE:
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{url}{path}", content=body, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


LITELLM = "this model's maximum context length is"
"""What LiteLLM knows a prompt that is too long by, in is_error_str_context_window_exceeded of 1.106; it looks at the
message in lower case."""


def test_what_is_too_long_has_a_code_and_words_that_clients_know(client: openai.OpenAI, llm: LLM) -> None:
    for prompt, length in (("x", 100000), (["x", "a b c d " * 2000], 16)):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="pico", prompt=prompt, max_tokens=length)
        assert caught.value.code == "context_length_exceeded"
        assert f"This model's maximum context length is {llm.engine.max_seq_len} tokens" in str(caught.value)
        assert LITELLM in str(caught.value).lower()


def test_a_stream_that_cannot_begin_is_refused_like_any_other(url: str) -> None:
    body = {**BASE[COMPLETION], "stream": True, "max_tokens": 100000}
    answer = httpx.post(f"{url}{COMPLETION}", json=body, timeout=PATIENCE)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
