"""Libraries that agents are written with, against the server: each has a tool called, or an object filled in.

Where a library is not installed its tests are skipped. `make test-clients` runs those of libraries that do not go with
the versions of constraints.txt.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from support.doc_words import ROOT
from support.waiting import PATIENCE

KEY = "none"
ASK = "How warm is it?"


class GetWeather(BaseModel):
    """The weather."""

    model_config = ConfigDict(extra="forbid")  # Without it the model may add keys until it is cut off.

    unit: Literal["C", "F"]
    days: int = Field(ge=1, le=9)


def needs(name: str, how: str = "pip install -e '.[dev]'") -> pytest.MarkDecorator:
    """Skips a test if a module is not installed."""
    there = importlib.util.find_spec(name) is not None
    return pytest.mark.skipif(not there, reason=f"{name} is not installed: {how}")


def get_weather(unit: Literal["C", "F"], days: int) -> str:
    """The weather."""
    return f"9 {unit} for {days} days"


@needs("langchain_openai")
@pytest.mark.usefixtures("hermes")
@pytest.mark.parametrize("responses", [False, True])
def test_langchain(url: str, responses: bool) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="pico", base_url=f"{url}/v1", api_key=KEY, use_responses_api=responses, timeout=PATIENCE,
        max_tokens=120, extra_body={"seed": 3},
    )  # fmt: skip
    caller = model.bind_tools([GetWeather], tool_choice="GetWeather", strict=True, parallel_tool_calls=False)
    message = caller.invoke(ASK)
    [call] = message.tool_calls
    assert GetWeather.model_validate(call["args"])
    whole: Any = None
    for chunk in caller.stream(ASK):
        whole = chunk if whole is None else whole + chunk
    assert [each["args"] for each in whole.tool_calls] == [call["args"]]
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_token_details"]["reasoning"] == 0
    shaped = model.with_structured_output(GetWeather, method="json_schema").invoke(ASK)
    assert isinstance(shaped, GetWeather)


@pytest.fixture
def offline_litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # It would fetch a list of prices.
    import litellm

    return litellm


@needs("litellm")
@pytest.mark.usefixtures("thinks")
def test_litellm(url: str, offline_litellm: Any) -> None:
    tools = [{"type": "function", "function": {"name": "get", "parameters": GetWeather.model_json_schema()}}]
    shape: Any = {"api_key": KEY, "max_tokens": 120, "messages": [{"role": "user", "content": ASK}], "tools": tools}
    choice = {"type": "function", "function": {"name": "get"}}
    chat = offline_litellm.completion(
        model="openai/pico", api_base=f"{url}/v1", tool_choice=choice, parallel_tool_calls=False,
        extra_body={"seed": 3, "thinking_token_budget": 4}, timeout=PATIENCE, **shape,
    )  # fmt: skip
    message = chat.choices[0].message
    assert message.reasoning_content
    assert GetWeather.model_validate_json(message.tool_calls[0].function.arguments)
    assert chat.usage.completion_tokens_details.reasoning_tokens == 5
    message = offline_litellm.completion(
        model="anthropic/pico", api_base=url, tool_choice=choice, parallel_tool_calls=False, seed=3,
        thinking={"type": "enabled", "budget_tokens": 4}, allowed_openai_params=["seed", "thinking"], timeout=PATIENCE,
        **shape,
    ).choices[0].message  # fmt: skip
    assert message.reasoning_content
    assert GetWeather.model_validate_json(message.tool_calls[0].function.arguments)


@needs("pydantic_ai")
@pytest.mark.usefixtures("thinks")
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_pydantic_ai(url: str, api: str) -> None:
    from pydantic_ai import Agent

    thinking = (
        {"thinking": {"type": "enabled", "budget_tokens": 4}} if api == "messages" else {"thinking_token_budget": 4}
    )
    settings: Any = {"max_tokens": 300, "parallel_tool_calls": False, "extra_body": {"seed": 3, **thinking}}
    agent = Agent(_pydantic_model(url, api), output_type=GetWeather, model_settings=settings, retries=0)
    result = agent.run_sync(ASK)
    assert isinstance(result.output, GetWeather)
    assert result.usage.output_tokens > 5
    [_, answer, *_] = result.all_messages()
    assert {"thinking", "tool-call"} <= {part.part_kind for part in answer.parts}


def _pydantic_model(url: str, api: str) -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if api == "messages":
        return AnthropicModel("pico", provider=AnthropicProvider(base_url=url, api_key=KEY))
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    return (
        OpenAIChatModel("pico", provider=provider) if api == "chat" else OpenAIResponsesModel("pico", provider=provider)
    )


@needs("instructor", "make test-clients")
@pytest.mark.usefixtures("hermes")
@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_instructor(url: str, mode: str) -> None:
    import instructor
    import openai

    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=PATIENCE), mode=instructor.Mode[mode]
    )
    length = "max_output_tokens" if mode == "RESPONSES_TOOLS" else "max_tokens"
    talk: Any = [{"role": "user", "content": ASK}]
    made = client.create(
        model="pico",
        messages=talk,
        response_model=GetWeather,
        max_retries=0,
        **{length: 200},
        extra_body={"seed": 3, "parallel_tool_calls": False},
    )
    assert isinstance(made, GetWeather)


@needs("llama_index", "make test-clients")
@pytest.mark.usefixtures("hermes")
def test_llama_index(url: str) -> None:
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="pico", api_base=f"{url}/v1", api_key=KEY, is_chat_model=True, is_function_calling_model=True,
        max_tokens=120, timeout=PATIENCE, additional_kwargs={"seed": 3},
    )  # fmt: skip
    tool = FunctionTool.from_defaults(fn=get_weather, fn_schema=GetWeather)
    answer = model.chat_with_tools([tool], user_msg=ASK, tool_required=True, allow_parallel_tool_calls=False)
    [call] = model.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather"
    assert get_weather(**call.tool_kwargs).endswith("days")
    assert "".join(part.delta or "" for part in model.stream_complete("import os", max_tokens=8))


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_the_pages_examples_run(url: str, library: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/agents.md").read_text(encoding="utf-8")
    [example] = [part for part in page.split("```python\n")[1:] if part.startswith(f"from {library} ")]
    exec(example.partition("```")[0].replace("http://127.0.0.1:8000", url), {})
    assert capsys.readouterr().out.strip()
