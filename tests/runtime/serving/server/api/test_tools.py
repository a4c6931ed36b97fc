"""Tools and thinking over OpenAI's client and LLM.chat: a model that knows nothing of tools must call them, for the
grammar leaves it no choice."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from support.agents import ANSWER, OPENED, ROOM, fits
from support.chat_samples import SAMPLES
from support.doc_words import ROOT
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidRequestError

ASK: Any = [{"role": "user", "content": "How warm is it?"}]
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": ROOM}},
    {"type": "function", "function": {"name": "now"}},
]
STRICT: Any = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
SHAPE: dict[str, Any] = {"seed": 7, "max_tokens": 300, "parallel_tool_calls": False}


@pytest.fixture(params=["hermes", "llama3_json", "pythonic", "mistral_named", "glm", "harmony"])
def form(request: pytest.FixtureRequest, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> str:
    """The served model has this format's template."""
    monkeypatch.setattr(llm, "chat_template", SAMPLES[request.param].template + ANSWER)
    name: str = request.param
    return name


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def streamed(client: openai.OpenAI, **fields: Any) -> dict[int, dict[str, Any]]:
    """The choices of a stream, put together: content, reasoning, calls with their ids, and the reason of the end."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in client.chat.completions.create(model="pico", messages=ASK, stream=True, **fields):
        for piece in chunk.choices:
            choice = choices.setdefault(piece.index, {"content": "", "reasoning": "", "calls": [], "reason": None})
            delta: Any = piece.delta
            choice["content"] += delta.content or ""
            assert getattr(delta, "reasoning", None) == getattr(delta, "reasoning_content", None)
            choice["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or ():
                if call.id is not None:
                    assert (call.type, call.index, call.function.arguments) == ("function", len(choice["calls"]), "")
                    choice["calls"].append([call.id, call.function.name, ""])
                else:
                    assert call.index == len(choice["calls"]) - 1
                    choice["calls"][-1][2] += call.function.arguments
            choice["reason"] = piece.finish_reason or choice["reason"]
    return choices


def test_a_required_call_fits_its_schema_in_every_format(client: openai.OpenAI, llm: LLM, form: str) -> None:
    answer = client.chat.completions.create(
        model="pico", messages=ASK, tools=TOOLS, tool_choice="required", n=2, **SHAPE
    )
    for choice in answer.choices:
        [(name, arguments)] = calls_of(choice.message)
        assert fits(name, arguments), arguments
        assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 2
    assert all(len(id) == 9 if form.startswith("mistral") else id.startswith("call_") for id in ids)
    pieces = streamed(client, tools=TOOLS, tool_choice="required", n=2, **SHAPE)
    for choice in answer.choices:
        got = pieces[choice.index]
        assert [(name, arguments) for _, name, arguments in got["calls"]] == calls_of(choice.message)
        assert (got["content"], got["reason"]) == ("", "tool_calls")
    params = SamplingParams(seed=7, max_tokens=300, n=2)
    ours = llm.chat(ASK, params, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    for choice, output in zip(answer.choices, ours.outputs, strict=True):
        assert output.message is not None
        assert [(call.name, call.arguments) for call in output.message.tool_calls] == calls_of(choice.message)


@pytest.mark.usefixtures("hermes")
def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="pico", messages=ASK, tools=TOOLS, tool_choice=NAMED, **SHAPE)
    [(name, arguments)] = calls_of(answer.choices[0].message)
    assert name == "get_weather"
    assert fits(name, arguments)


@pytest.mark.usefixtures("hermes")
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called(client: openai.OpenAI, llm: LLM, mode: str) -> None:
    """All tools stay in the prompt, so that its prefix stays what it is."""
    allowed: Any = {"mode": mode, "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
    tag = llm.tokenizer.encode("<tool_call>", add_special_tokens=False)[-1]
    shape: Any = {"seed": 7, "max_tokens": 40, "logit_bias": {str(tag): 100}, "parallel_tool_calls": False}
    some, every = (
        client.chat.completions.create(model="pico", messages=ASK, tools=TOOLS, tool_choice=each, **shape)
        for each in (choice, mode)
    )
    assert [name for name, _ in calls_of(some.choices[0].message)] == ["now"]
    assert some.usage is not None
    assert every.usage is not None
    assert some.usage.prompt_tokens == every.usage.prompt_tokens


@pytest.mark.usefixtures("hermes")
def test_parallel_calls_may_be_several(client: openai.OpenAI, llm: LLM) -> None:
    """The model likes the tag that begins a call best, so only the length ends the calls."""
    tag = llm.tokenizer.encode("<tool_call>", add_special_tokens=False)[-1]
    shape: Any = {"seed": 7, "max_tokens": 200, "logit_bias": {str(tag): 100}}
    pieces = streamed(client, tools=TOOLS, tool_choice="required", **shape)
    assert len(pieces[0]["calls"]) > 1
    assert all(fits(name, arguments) for _, name, arguments in pieces[0]["calls"][:-1])
    assert pieces[0]["reason"] == "length", "an answer that is cut off says so"


@pytest.mark.usefixtures("hermes")
@pytest.mark.parametrize("tools", [TOOLS, STRICT])
def test_a_chosen_call_follows_its_grammar_if_it_is_strict(client: openai.OpenAI, llm: LLM, tools: Any) -> None:
    """The model is pushed to begin a call. Without a grammar it makes nonsense of it, which becomes content."""
    tag = llm.tokenizer.encode("<tool_call>", add_special_tokens=False)[-1]
    shape: Any = {"seed": 3, "max_tokens": 60, "logit_bias": {str(tag): 100}}
    answer = client.chat.completions.create(model="pico", messages=ASK, tools=tools, **shape)
    [choice] = answer.choices
    if tools is STRICT:
        assert choice.message.tool_calls
        assert fits(*calls_of(choice.message)[0])
    else:
        assert choice.message.content == "<tool_call>" * 60
        assert choice.message.tool_calls is None


@pytest.mark.usefixtures("hermes")
def test_history_with_calls_and_results(client: openai.OpenAI, llm: LLM, url: str) -> None:
    first = client.chat.completions.create(model="pico", messages=ASK, tools=TOOLS, tool_choice=NAMED, **SHAPE)
    called: Any = first.choices[0].message.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": "23 degrees"} for call in called]
    talk: Any = [{"role": "developer", "content": "Be short."}, *ASK, first.choices[0].message, *results]
    answer = client.chat.completions.create(model="pico", messages=talk, tools=TOOLS, temperature=0, max_tokens=8)
    plain = [message if isinstance(message, dict) else message.to_dict() for message in talk]
    ours = llm.chat(plain, SamplingParams(temperature=0, max_tokens=8), tools=TOOLS)
    assert answer.choices[0].message.content == ours.outputs[0].text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {' in ours.prompt
    assert "[tool] 23 degrees" in ours.prompt
    body = {"model": "pico", "messages": plain, "tools": TOOLS}
    counted = httpx.post(f"{url}/tokenize", json=body, timeout=PATIENCE).raise_for_status().json()
    assert counted["tokens"] == ours.prompt_token_ids
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == counted["count"]


@pytest.mark.usefixtures("hermes")
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_followed_names_its_tool(client: openai.OpenAI, llm: LLM, stream: bool) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools: Any = [*TOOLS, {"type": "function", "function": {"name": "odd", "parameters": odd}}]
    with pytest.raises(
        openai.BadRequestError, match=r"tools: the parameters of 'odd' cannot be followed: .*uniqueItems"
    ):
        client.chat.completions.create(model="pico", messages=ASK, tools=tools, tool_choice="required", stream=stream)
    with pytest.raises(InvalidRequestError, match="tools: the parameters of 'odd' cannot be followed"):
        llm.chat(ASK, tools=tools, tool_choice="required")
    client.chat.completions.create(model="pico", messages=ASK, tools=tools, max_tokens=2)  # nothing need be enforced


@pytest.mark.usefixtures("hermes")
def test_calls_do_not_depend_on_company(llm: LLM) -> None:
    talks = [[{"role": "user", "content": f"Question {number}?"}] for number in range(5)]
    params = [SamplingParams(seed=number, max_tokens=120, logprobs=0) for number in range(5)]
    wish: Any = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    together = llm.chat(talks, params, **wish)
    for talk, each, output in zip(talks, params, together, strict=True):
        alone = llm.chat(talk, each, **wish).outputs[0]
        assert alone.token_ids == output.outputs[0].token_ids
        assert alone.logprobs == output.outputs[0].logprobs
        assert alone.message == output.outputs[0].message


@pytest.mark.usefixtures("hermes")
def test_logprobs_of_calls(client: openai.OpenAI) -> None:
    shape: Any = {**SHAPE, "tools": TOOLS, "tool_choice": "required", "logprobs": True, "top_logprobs": 1}
    answer = client.chat.completions.create(model="pico", messages=ASK, **shape)
    whole = answer.choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert answer.usage is not None
    assert len(whole.content) == answer.usage.completion_tokens
    entries = []
    for chunk in client.chat.completions.create(model="pico", messages=ASK, stream=True, **shape):
        entries += (chunk.choices[0].logprobs.content or []) if chunk.choices[0].logprobs else []
    assert entries == whole.content


@pytest.mark.parametrize("budget", [0, 6, None])
def test_thinking_is_apart_and_its_budget_ends_it(
    client: openai.OpenAI, llm: LLM, monkeypatch: pytest.MonkeyPatch, budget: int | None
) -> None:
    monkeypatch.setattr(llm, "chat_template", OPENED)
    more = {} if budget is None else {"thinking_token_budget": budget}
    shape: Any = {"seed": 5, "max_tokens": 24, "extra_body": more}
    counted: Any = {**shape, "stream_options": {"include_usage": True}}
    answer = client.chat.completions.create(model="pico", messages=ASK, **shape)
    message: Any = answer.choices[0].message
    ours = llm.chat(ASK, SamplingParams(seed=5, max_tokens=24), **more).outputs[0]
    assert ours.message is not None
    thought = getattr(message, "reasoning_content", None)
    assert (message.content, thought) == (ours.message.content, ours.message.reasoning)
    assert getattr(message, "reasoning", None) == thought
    pieces = streamed(client, **shape)[0]
    assert (pieces["content"], pieces["reasoning"] or None) == (message.content or "", thought)
    thinking = len(ours.token_ids)
    if budget is not None:
        thinking = ours.token_ids.index(llm.tokenizer.encode("</think>", add_special_tokens=False)[-1]) + 1
    *_, last = client.chat.completions.create(model="pico", messages=ASK, stream=True, **counted)
    for usage in (answer.usage, last.usage):
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == thinking
    if budget is None:
        assert message.content is None, "this model never ends its thinking"
    else:
        assert message.content
        assert "</think>" not in message.content
        assert thinking - 1 <= budget


@pytest.mark.usefixtures("thinks")
def test_thinking_and_calls(client: openai.OpenAI) -> None:
    shape: Any = {**SHAPE, "tools": TOOLS, "tool_choice": "required", "extra_body": {"thinking_token_budget": 4}}
    message: Any = client.chat.completions.create(model="pico", messages=ASK, **shape).choices[0].message
    assert message.reasoning_content
    assert fits(*calls_of(message)[0])
    quiet = shape | {"extra_body": {}, "reasoning_effort": "none"}
    silent: Any = client.chat.completions.create(model="pico", messages=ASK, **quiet).choices[0].message
    assert not hasattr(silent, "reasoning_content")
    assert fits(*calls_of(silent)[0])


def test_json_comes_after_the_thinking(client: openai.OpenAI, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "chat_template", OPENED)
    form: Any = {"type": "json_schema", "json_schema": {"name": "room", "schema": ROOM}}
    more = {"thinking_token_budget": 4}
    answer = client.chat.completions.create(
        model="pico", messages=ASK, response_format=form, seed=1, max_tokens=200, extra_body=more
    )
    message: Any = answer.choices[0].message
    assert message.reasoning_content
    assert fits("get_weather", message.content)


@pytest.mark.usefixtures("hermes")
def test_the_pages_example_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    assert "http://127.0.0.1:8000" in example
    exec(example.replace("http://127.0.0.1:8000", url), {})
    assert capsys.readouterr().out.strip()
