"""The Responses API over OpenAI's client: what a chat answers, in items, in events, and kept for the next turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
from tensorwright.runtime.serving.server.options import ServerOptions

PATH = "/v1/responses"
TOOL: Any = {"type": "function", "name": "get_weather", "description": "The weather.", "parameters": ROOM}
NOW: Any = {"type": "function", "name": "now"}
CALL: Any = {
    "tools": [TOOL, NOW],
    "tool_choice": {"type": "function", "name": "get_weather"},
    "parallel_tool_calls": False,
}
SHAPE: Any = {"model": "pico", "max_output_tokens": 120}
BUDGET: Any = {"extra_body": {"seed": 3, "thinking_token_budget": 5}}
GREEDY: Any = {"model": "pico", "temperature": 0, "max_output_tokens": 12}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{**SHAPE, **fields})


def bare(response: Any) -> dict[str, Any]:
    """A response without what differs from one request to the next."""
    left: dict[str, Any] = response.model_dump(exclude={"id", "created_at", "completed_at", "usage"})
    for item in left["output"]:
        del item["id"]
        item.pop("call_id", None)
    return left


def test_a_text_is_what_a_chat_answers(client: openai.OpenAI) -> None:
    answer = client.responses.create(**GREEDY, input="import os", instructions="Be short.", metadata={"a": "b"})
    talk: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "import os"}]
    chat = client.chat.completions.create(model="pico", messages=talk, temperature=0, max_tokens=12)
    assert answer.output_text == chat.choices[0].message.content
    assert chat.usage is not None
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (chat.usage.prompt_tokens, 12)
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    assert (answer.metadata, answer.instructions, answer.temperature) == ({"a": "b"}, "Be short.", 0)


@pytest.mark.usefixtures("thinks")
def test_a_stream_tells_of_every_item_in_order(client: openai.OpenAI) -> None:
    fields: Any = {**SHAPE, **BUDGET, "input": "How warm is it?"}
    whole = client.responses.create(**fields, **CALL)
    assert [item.type for item in whole.output] == ["reasoning", "function_call"]
    assert whole.status == "completed"
    assert fits(whole.output[1].name, whole.output[1].arguments)  # type: ignore[union-attr]
    events: list[Any] = list(client.responses.create(**fields, **CALL, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type for event in events]
    assert [name for number, name in enumerate(names) if number == 0 or name != names[number - 1]] == [
        "response.created", "response.in_progress",
        "response.output_item.added", "response.content_part.added",
        "response.reasoning_text.delta", "response.reasoning_text.done",
        "response.content_part.done", "response.output_item.done",
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    last = events[-1].response
    assert bare(last) == bare(whole)
    for index, kind in enumerate(("reasoning_text", "function_call_arguments")):
        text = "".join(event.delta for event in events if event.type == f"response.{kind}.delta")
        item = last.output[index]
        assert text == (item.arguments if index else item.content[0].text)
        [done] = [event for event in events if event.type == f"response.{kind}.done"]
        assert (done.item_id, done.output_index) == (item.id, index)
    done_items = [event.item for event in events if event.type == "response.output_item.done"]
    assert done_items == last.output


@pytest.mark.usefixtures("thinks")
def test_a_streamed_text_has_its_parts_and_is_put_together_by_the_client(client: openai.OpenAI) -> None:
    schema: Any = {"name": "room", "schema": ROOM}
    text: Any = {"format": {"type": "json_schema", **schema}}
    with client.responses.stream(**SHAPE, **BUDGET, input="x", text=text) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_response()
    assert names[-1] == "response.completed"
    assert {"response.output_text.delta", "response.output_text.done"} <= set(names)
    thought, message = final.output
    assert (thought.type, message.type, message.status) == ("reasoning", "message", "completed")  # type: ignore[union-attr]
    form: Any = {"type": "json_schema", "json_schema": schema}
    talk: Any = [{"role": "user", "content": "x"}]
    chat = client.chat.completions.create(model="pico", messages=talk, max_tokens=120, response_format=form, **BUDGET)
    assert final.output_text == chat.choices[0].message.content
    assert chat.usage is not None
    assert final.usage is not None
    details = chat.usage.completion_tokens_details
    assert details is not None
    assert final.usage.output_tokens_details.reasoning_tokens == details.reasoning_tokens


@pytest.mark.usefixtures("thinks")
def test_a_stored_response_goes_on_as_the_whole_conversation_does(client: openai.OpenAI, url: str) -> None:
    first = ask(client, **BUDGET, **CALL, input="How warm is it?", instructions="Only once.")
    call = first.output[-1]
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": [{"type": "input_text", "text": "9"}],
    }
    follow: Any = {**GREEDY, "tools": CALL["tools"], "tool_choice": "none"}
    stored = client.responses.create(**follow, input=[result], previous_response_id=first.id)
    said: Any = [{"role": "user", "content": "How warm is it?"}, *(item.to_dict() for item in first.output), result]
    said[1]["content"] = [{"type": "reasoning_text", "text": first.output[0].content[0].text}]
    whole = client.responses.create(**follow, input=said)
    assert stored.previous_response_id == first.id
    assert stored.usage is not None
    assert whole.usage is not None
    assert (stored.output_text, stored.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
    third = client.responses.create(**follow, input="And now?", previous_response_id=stored.id)
    assert third.usage is not None
    assert third.usage.input_tokens > stored.usage.input_tokens
    assert httpx.get(f"{url}{PATH}/{first.id}", timeout=PATIENCE).json() == json.loads(first.to_json())


def test_a_stored_response_is_read_and_deleted(client: openai.OpenAI) -> None:
    answer = ask(client, input="x")
    assert client.responses.retrieve(answer.id) == answer
    client.responses.delete(answer.id)
    unstored = ask(client, input="x", store=False)
    assert (answer.store, unstored.store) == (True, False)  # type: ignore[attr-defined]
    for name in (answer.id, unstored.id, "resp_0"):
        with pytest.raises(openai.NotFoundError, match=r"no response .* is stored") as caught:
            client.responses.retrieve(name)
        assert caught.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError):
            ask(client, input="x", previous_response_id=name)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(name)


@pytest.mark.usefixtures("thinks")
def test_answers_and_counts_do_not_depend_on_company(client: openai.OpenAI, url: str) -> None:
    """Of both APIs for agents, streamed or not; the first round runs alone, the second all at once."""

    def ask_one(number: int) -> list[Any]:
        seed = {"seed": number, "thinking_token_budget": 4 + number}
        shape: Any = {"model": "pico", "max_output_tokens": 40, "input": f"Question {number}?", "extra_body": seed}
        if number % 3 == 0:
            answer: Any = client.responses.create(**shape)
        elif number % 3 == 1:
            answer = list(client.responses.create(**shape, stream=True))[-1].response  # type: ignore[call-overload]
        else:
            turn = {"role": "user", "content": f"Question {number}?"}
            thinking = {"type": "enabled", "budget_tokens": 4 + number}
            body = {"model": "pico", "max_tokens": 40, "messages": [turn], "seed": number, "thinking": thinking}
            told = httpx.post(f"{url}/v1/messages", json=body, timeout=PATIENCE).json()
            return [told["content"], told["usage"]["output_tokens_details"]]
        return [bare(answer)["output"], answer.usage.output_tokens_details.reasoning_tokens]

    alone = [ask_one(number) for number in range(9)]
    with ThreadPoolExecutor(9) as threads:
        assert list(threads.map(ask_one, range(9))) == alone


@pytest.fixture
def keyed(llm: LLM) -> Iterator[TestClient]:
    """An application of its own with two keys, which bounds a conversation to 400 bytes."""
    app = create_app({"pico": llm}, ServerOptions(api_keys=("a", "b"), max_body_size=400, strict=True))
    yield TestClient(app)
    app.state.pools.close()


def post(client: TestClient, key: str, **fields: Any) -> httpx.Response:
    body = {"model": "pico", "max_output_tokens": 2, "input": "x", **fields}
    answer: httpx.Response = client.post(PATH, json=body, headers={"authorization": f"Bearer {key}"})
    return answer


def test_nobody_reads_what_another_key_stored(keyed: TestClient) -> None:
    name = post(keyed, "a").json()["id"]
    for key, status in (("b", 404), ("a", 200)):
        headers = {"x-api-key": key}
        assert keyed.get(f"{PATH}/{name}", headers=headers).status_code == status
        assert post(keyed, key, previous_response_id=name).status_code == status
        assert keyed.delete(f"{PATH}/{name}", headers=headers).status_code == status
    assert post(keyed, "a", previous_response_id=name).status_code == 404
    assert keyed.get(f"{PATH}/{name}").status_code == 401


def test_a_stored_conversation_is_bounded_like_one_that_is_sent_whole(keyed: TestClient) -> None:
    name = post(keyed, "a", input="a" * 150).json()["id"]
    name = post(keyed, "a", input="b" * 10, previous_response_id=name).json()["id"]
    answer = post(keyed, "a", input="c" * 150, previous_response_id=name)
    assert answer.status_code == 400
    assert "the conversation must have at most 400 bytes" in answer.json()["error"]["message"]


def test_a_server_that_stores_nothing_says_so(llm: LLM) -> None:
    app = create_app({"pico": llm}, ServerOptions(max_stored_responses=0))
    client, body = TestClient(app), {"model": "pico", "max_output_tokens": 2, "input": "x"}
    assert client.post(PATH, json=body).json()["store"] is False
    refused = client.post(PATH, json={**body, "store": True})
    assert (refused.status_code, "stores no responses" in refused.text) == (400, True)
    app.state.pools.close()


@pytest.mark.parametrize("form", ["json_schema", "json_object"])
def test_the_text_has_the_form_that_is_asked_for(client: openai.OpenAI, form: str) -> None:
    more = {"name": "room", "schema": ROOM, "strict": True} if form == "json_schema" else {}
    text: Any = {"format": {"type": form, **more}}
    answer = ask(client, input="x", text=text, extra_body={"seed": 1}, max_output_tokens=300)
    assert answer.text.model_dump(by_alias=True, exclude_none=True) == text
    if form == "json_schema":
        assert fits("get_weather", answer.output_text)
    else:
        assert answer.output_text.lstrip().startswith("{")


@pytest.mark.usefixtures("hermes")
def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    some: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    answer = ask(client, input="x", tools=[TOOL, NOW], tool_choice=some, parallel_tool_calls=False)
    assert [item.name for item in answer.output] == ["now"]


def test_an_error_in_midstream_fails_the_response(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: RequestHandle, event: Any) -> bool:
        raise NumericalError("the logits are NaN")

    monkeypatch.setattr(RequestHandle, "_on_event", fail)
    last: Any = list(ask(client, input="x", stream=True, max_output_tokens=50))[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert (last.response.error.code, last.response.error.message) == ("NumericalError", "the logits are NaN")


USER = {"role": "user", "content": "x"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools of type 'web_search' are not supported, only functions are"),
    ({"tools": [{"type": "mcp", "server_label": "a"}]}, "tools of type 'mcp' are not supported"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "a function must have a name alone"),
    ({"input": []}, "input"),
    ({"input": [{"type": "computer_call"}]}, "items of type 'computer_call' are not supported"),
    ({"input": [{"type": "item_reference", "id": "a"}]}, "send the item itself"),
    ({"input": [{"role": "user"}]}, "an item of type message must have content"),
    ({"input": [{**USER, "call_id": "a"}]}, "an item of type message must come without call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "must have output"),
    ({"input": [{**USER, "content": [{"type": "input_image", "image_url": "a"}]}]}, "input_image"),
    ({"background": True}, "background"),
    ({"conversation": "a"}, "conversation is not supported"),
    ({"prompt": {"id": "a"}}, "prompt is not supported"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["message.output_text.logprobs"]}, "use chat completions"),
    ({"metadata": {str(number): "a" for number in range(17)}}, "at most 16 entries"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "schema must come with the type json_schema"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"messages": []}, "messages"),
    ({"prompt_cache_key": "a"}, "prompt_cache_key is not supported"),
    ({"reasoning": {"effort": "high", "summary": "auto"}}, "summary is not supported"),
]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("fields", "named"), REFUSED)
def test_it_is_refused_by_name(url: str, fields: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{url}{PATH}", json={"model": "pico", "input": "x", **fields}, timeout=PATIENCE)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert named in f"{error['message']} {error['param']}"


def test_what_changes_nothing_is_left_out_and_named(url: str) -> None:
    fields = {"max_output_tokens": 1, "reasoning": {"summary": "auto"}, "prompt_cache_key": "a", "odd": 1}
    answer = httpx.post(f"{url}{PATH}", json={"model": "pico", "input": "x", **fields}, timeout=PATIENCE)
    assert answer.status_code == 200
    assert set(answer.headers["x-tensorwright-ignored"].split(", ")) == {"reasoning.summary", "prompt_cache_key", "odd"}
