"""Anthropic's Messages API over Anthropic's client: what a chat answers, in its blocks, events and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.testclient import TestClient

from support.agents import ROOM, fits
from support.waiting import PATIENCE
from tensorwright import LLM
from tensorwright.errors import NumericalError
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.messages_answer import PING, read_input, with_pings
from tensorwright.runtime.serving.server.options import ServerOptions

PATH = "/v1/messages"
USER: dict[str, Any] = {"role": "user", "content": "How warm is it?"}
TOOLS: Any = [
    {"name": "get_weather", "description": "The weather.", "input_schema": ROOM},
    {"name": "now", "input_schema": {"type": "object"}},
]
PICK: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
SHAPE: Any = {"model": "pico", "max_tokens": 120, "messages": [USER]}
GREEDY: Any = {"extra_body": {"temperature": 0}}  # The client of today has no such parameter.
SEED: Any = {"extra_body": {"seed": 3}}
THINK: Any = {"type": "enabled", "budget_tokens": 5}


@pytest.fixture(scope="module")
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def without_ids(message: Any) -> list[dict[str, Any]]:
    return [block.model_dump(exclude={"id"}, exclude_none=True) for block in message.content]


def test_a_text_is_what_a_chat_answers(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    system: Any = [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}]
    turn: Any = {"role": "user", "content": [{"type": "text", "text": "import os"}]}
    shape: Any = {"model": "pico", "max_tokens": 12, **GREEDY}
    message = claude.messages.create(**shape, system=system, messages=[turn])
    talk: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "import os"}]
    chat = client.chat.completions.create(**shape, messages=talk)
    [block] = message.content
    assert block.text == chat.choices[0].message.content  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert chat.usage is not None
    assert (usage.input_tokens + (usage.cache_read_input_tokens or 0)) == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens
    counted = claude.messages.count_tokens(model="pico", system=system, messages=[turn])
    assert counted.input_tokens == chat.usage.prompt_tokens
    assert block.text is not None  # type: ignore[union-attr]
    stop = block.text[3:6]  # type: ignore[union-attr]
    ended = claude.messages.create(**shape, system=system, messages=[turn], stop_sequences=[stop])
    assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.usefixtures("thinks")
def test_a_stream_is_the_whole_message(claude: anthropic.Anthropic) -> None:
    fields: Any = {**SHAPE, **SEED, "tools": TOOLS, "tool_choice": PICK, "thinking": THINK}
    whole = claude.messages.create(**fields)
    thought, call = whole.content
    assert (thought.type, call.type, whole.stop_reason) == ("thinking", "tool_use", "tool_use")
    assert thought.thinking  # type: ignore[union-attr]
    assert call.id.startswith("toolu_")  # type: ignore[union-attr]
    assert fits(call.name, json.dumps(call.input))  # type: ignore[union-attr]
    with claude.messages.stream(**fields) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_message()
    assert without_ids(final) == without_ids(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert {"thinking", "input_json"} <= set(names), "the client made its own events of the deltas"


@pytest.mark.usefixtures("thinks")
def test_the_events_come_in_their_order(url: str) -> None:
    body = {**SHAPE, "seed": 3, "thinking": THINK, "stream": True, "max_tokens": 30}
    with httpx.stream("POST", f"{url}{PATH}", json=body, timeout=PATIENCE) as answer:
        lines = [line for line in answer.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert names == [event["type"] for event in events]
    assert [name for number, name in enumerate(names) if number == 0 or name != names[number - 1]] == [
        "message_start", "ping",
        "content_block_start", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 30
    kinds = {event["index"]: event["content_block"]["type"] for event in events if "content_block" in event}
    assert kinds == {0: "thinking", 1: "text"}


@pytest.mark.usefixtures("thinks")
def test_results_go_back_as_the_chats_messages_do(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    first = claude.messages.create(**SHAPE, **SEED, tools=TOOLS, tool_choice=PICK, thinking=THINK)
    call: Any = first.content[-1]
    told: Any = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "9 degrees"}]},
            {"type": "text", "text": "So?"},
        ],
    }
    talk: Any = [USER, {"role": "assistant", "content": first.content}, told]
    message = claude.messages.create(
        model="pico", max_tokens=8, messages=talk, tools=TOOLS, tool_choice={"type": "none"}, **GREEDY
    )
    function = {"name": call.name, "arguments": json.dumps(call.input)}
    calls = [{"id": call.id, "type": "function", "function": function}]
    thought: Any = first.content[0]
    chat_talk: Any = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": thought.thinking},
        {"role": "tool", "tool_call_id": call.id, "content": "9 degrees"},
        {"role": "user", "content": "So?"},
    ]
    chat = client.chat.completions.create(model="pico", max_tokens=8, temperature=0, messages=chat_talk)
    answer: Any = chat.choices[0].message
    assert without_ids(message) == [{"type": "thinking", "thinking": answer.reasoning_content, "signature": ""}]
    assert chat.usage is not None
    read = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + read == chat.usage.prompt_tokens


def test_a_schema_shapes_the_text(claude: anthropic.Anthropic) -> None:
    shape: Any = {"output_config": {"format": {"type": "json_schema", "schema": ROOM}}, "seed": 1}
    message = claude.messages.create(**SHAPE, extra_body=shape)
    assert message.stop_reason == "end_turn"
    assert fits("get_weather", message.content[0].text)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("switch", "rendered"), [("enabled", "True"), ("disabled", "False"), ("adaptive", "left"), (None, "left")]
)
def test_thinking_turns_the_templates_switch(
    claude: anthropic.Anthropic, llm: LLM, monkeypatch: pytest.MonkeyPatch, switch: str | None, rendered: str
) -> None:
    shown = "{% if enable_thinking is defined %}{{ enable_thinking }}{% else %}left{% endif %}"
    monkeypatch.setattr(llm, "chat_template", "{# </think> #}" + shown + " {{ messages[0].content }}")
    thinking: Any = {"thinking": {"type": switch, **({"budget_tokens": 9} if switch == "enabled" else {})}}
    count = claude.messages.count_tokens(model="pico", messages=[USER], **(thinking if switch else {}))
    assert count.input_tokens == len(llm.tokenizer.encode(f"{rendered} {USER['content']}", add_special_tokens=False))


def test_a_model_that_cannot_think_leaves_the_wish_out_and_says_so(url: str) -> None:
    for thinking, ignored in ((THINK, "thinking"), ({"type": "disabled"}, None)):
        answer = httpx.post(f"{url}{PATH}", json={**SHAPE, "max_tokens": 8, "thinking": thinking}, timeout=PATIENCE)
        assert (answer.status_code, answer.headers.get("x-tensorwright-ignored")) == (200, ignored)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, "role"),
    ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages must end with the user's"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "blocks of type 'image' are not"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a block of type text must have text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
        "must not come with the role",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "id": "a"}]}]}, "must come without id"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools of type 'web_search_20250305' are not"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "the name must be"),
    ({"tools": TOOLS}, "the chat template shows no known format of calls"),
    ({"tool_choice": {"type": "tool"}}, "name must come with the type tool"),
    ({"tool_choice": {"type": "any"}}, "tool_choice must come with tools"),
    ({"thinking": {"type": "enabled"}}, "budget_tokens must come with the type enabled"),
    ({"thinking": {"type": "enabled", "budget_tokens": 120}}, "must be less than max_tokens, 120"),
    ({"thinking": THINK}, "thinking: this model's chat template has no variable for it"),
    ({"mcp_servers": []}, "mcp_servers is not supported"),
    ({"stop_sequences": [""]}, "stop"),
    ({"odd": 1}, "odd"),
]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("fields", "named"), REFUSED)
def test_it_is_refused_by_name(url: str, fields: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{url}{PATH}", json={**SHAPE, **fields}, timeout=PATIENCE)
    assert answer.status_code == 400, answer.text
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["request_id"] == answer.headers["x-request-id"]
    assert named in told["error"]["message"]


@pytest.fixture
def keyed(llm: LLM) -> Iterator[TestClient]:
    app = create_app({"pico": llm}, ServerOptions(api_keys=("a", "b"), max_body_size=2000))
    yield TestClient(app)
    app.state.pools.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "b"}, 200),
        ({"authorization": "Bearer a"}, 200),
        ({"authorization": "Bearer placeholder", "x-api-key": "a"}, 200),
        ({"x-api-key": "c"}, 401),
        ({"authorization": "a"}, 401),
        ({}, 401),
    ],
)
def test_keys_come_in_either_header(keyed: TestClient, headers: dict[str, str], status: int) -> None:
    answer = keyed.post(PATH, json={**SHAPE, "max_tokens": 1}, headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["type"] == "authentication_error"


def test_errors_of_guards_have_anthropics_form_too(keyed: TestClient, claude: anthropic.Anthropic) -> None:
    large = keyed.post(PATH, json={**SHAPE, "system": "a" * 2000}, headers={"x-api-key": "a"})
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(**{**SHAPE, "model": "gpt"})
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index, call-overload]


def test_an_error_in_midstream_is_the_last_event(claude: anthropic.Anthropic, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: RequestHandle, event: Any) -> bool:
        raise NumericalError("the logits are NaN")

    monkeypatch.setattr(RequestHandle, "_on_event", fail)
    with pytest.raises(anthropic.APIStatusError, match="the logits are NaN"):
        list(claude.messages.create(**SHAPE, stream=True))


def test_an_input_that_is_no_object_is_passed_on_as_it_is() -> None:
    for text in ('{"a": ', "[1]", "a"):
        assert read_input(text) == {"INVALID_JSON": text}
    assert (read_input(""), read_input('{"a": 1}')) == ({}, {"a": 1})


def test_pings_come_while_nothing_else_does() -> None:
    """The events wait for pings here, so that nothing depends on time."""

    async def run() -> list[str]:
        pinged = asyncio.Event()

        async def events() -> AsyncIterator[str]:
            yield "first"
            await pinged.wait()
            yield "second"

        seen = []
        async for event in with_pings(events(), 0.001):
            seen.append(event)
            if seen[-2:] == [PING, PING]:
                pinged.set()
        return seen

    seen = asyncio.run(run())
    assert [event for event in seen if event != PING] == ["first", "second"]
    assert seen.count(PING) >= 2
