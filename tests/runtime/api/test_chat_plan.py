"""What a chat's prompt, parameters and parser become, by its template and its wishes. No engine runs."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from support.chat_samples import CALLS, CONTENT, SAMPLES, TOOLS
from support.fake_runtime import write_engine
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.api.chat_plan import ChatPlan, ChatSettings, ChatWish, plan_chat
from tensorwright.runtime.chat_formats.registry import REASONING_FORMATS, TOOL_FORMATS, find_tool_format
from tensorwright.runtime.chat_formats.tools import read_tools
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.requests.sampling_params import SamplingParams

ASK = [{"role": "user", "content": "Weather?"}]
HERMES = SAMPLES["hermes"].template
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
Plan = Callable[..., ChatPlan]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineDir:
    return open_engine(write_engine(tmp_path_factory.mktemp("plan") / "engine"), read_tokenizer=True)


@pytest.fixture
def plan(engine: EngineDir) -> Plan:
    def make(
        template: str,
        messages: Any = ASK,
        tools: Any = None,
        choice: Any = None,
        params: SamplingParams | None = None,
        settings: dict[str, str] | None = None,
        **wish: Any,
    ) -> ChatPlan:
        chosen = ChatSettings(template, **(settings or {}))
        wishes = ChatWish(read_tools(tools, choice, wish.pop("parallel", None)), **wish)
        return plan_chat(engine, chosen, messages, wishes, params or SamplingParams())

    return make


def history(as_text: bool, content: str | None = CONTENT) -> list[dict[str, Any]]:
    """A conversation with calls and their results. as_text: whether arguments are JSON texts, as OpenAI's clients send
    them, or dicts."""
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments if as_text else json.loads(arguments)},
        }
        for number, (name, arguments) in enumerate(CALLS)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"result {call['id']}"} for call in calls]
    return [*ASK, {"role": "assistant", "content": content, "tool_calls": calls}, *results]


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("as_text", [True, False])
def test_templates_are_recognised_and_render_what_is_parsed(plan: Plan, name: str, as_text: bool) -> None:
    sample = SAMPLES[name]
    planned = plan(sample.template, history(as_text, CONTENT if sample.content else None), TOOLS)
    assert planned.tool_format is TOOL_FORMATS[name]
    assert sample.answer in planned.prompt.text
    assert "result call_1" in planned.prompt.text
    assert len(planned.message(sample.answer).tool_calls) == 2
    assert planned.params == SamplingParams(), "nothing shapes an answer whose calls the model chooses"


PARTS = (
    "{% for message in messages %}{% for call in message.tool_calls %}{{ 'a ' + call.function.arguments }}{% endfor %}"
)


def test_arguments_of_earlier_calls_are_a_text_where_the_template_wants_one(plan: Plan) -> None:
    """DeepSeek's template joins texts, and Phi's writes the value itself."""
    joined = PARTS + "{{ message.content }}{% endfor %}"
    assert plan(joined, history(True)).prompt.text.endswith(f"a {CALLS[0][1]}a {{}}{CONTENT}result call_0result call_1")
    written = joined.replace("{{ 'a ' + call.function.arguments }}", "{{ call.function.arguments }}")
    assert CALLS[0][1] in plan(written, history(True)).prompt.text


def test_results_have_their_tools_name(plan: Plan) -> None:
    shown = "{{ message.name }}:{{ message.content }} {{ message.tool_calls | length }}"
    named = f"{{% for message in messages %}}{shown}{{% endfor %}}"
    text = plan(named, history(True)).prompt.text
    assert "get_weather:result call_0" in text
    assert "now:result call_1" in text


THOUGHT = [*ASK, {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."}, *ASK]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_earlier_thinking_is_where_the_template_reads_it(plan: Plan, key: str) -> None:
    talk = [*ASK, {"role": "assistant", "content": "Hello.", key: "Hm."}]
    shown = "{% for message in messages %}{{ message.WHERE }}|{{ message.content }}{% endfor %}"
    assert (
        plan(shown.replace("WHERE", "reasoning_content") + "{# </think> #}", talk).prompt.text == "|Weather?Hm.|Hello."
    )
    harmony = shown.replace("WHERE", "thinking") + "{# <|channel|><|message|> #}"
    assert plan(harmony, talk).prompt.text == "|Weather?Hm.|Hello."
    called = [*ASK, {**history(True)[1], key: "Hm."}]
    read = harmony.replace("{{ message.content }}", "{{ message.content }}{{ message.tool_calls | length }}")
    assert plan(read, called).prompt.text == f"|Weather?0Hm.\n{CONTENT}|2"


def test_a_template_that_knows_no_calls_gets_them_in_the_content(plan: Plan) -> None:
    granite = (
        "<|start_of_role|>{# <|tool_call|> #}{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    text = plan(granite, history(True), TOOLS).prompt.text
    assert f'{CONTENT}<|tool_call|>[{{"name": "get_weather", "arguments": {CALLS[0][1]}}}, ' in text


@pytest.mark.parametrize("arguments", ["{oops", "[]", '{"a": 1'])
def test_what_a_model_wrote_for_arguments_goes_back_as_it_was(plan: Plan, arguments: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "now", "arguments": arguments}}
    talk = [*ASK, {"role": "assistant", "tool_calls": [call]}, ASK[0]]
    assert json.dumps(arguments) in plan(HERMES, talk).prompt.text


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [{**history(True)[1], "tool_calls": [{"id": "a"}]}],
            "messages[0]: tool_calls[0] must have a function with a name",
        ),
        ([{**history(True)[1], "tool_calls": "now"}], "messages[0]: tool_calls must be a list"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": 3}}]}],
            "messages[0]: tool_calls[0]: arguments must be the JSON text of an object, got 3",
        ),
    ],
)
def test_malformed_earlier_calls(plan: Plan, messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        plan(HERMES, messages)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            history(True)[:2],
            "messages[1] has the role 'assistant' and tool_calls, which the chat template does not read",
        ),
        ([{"role": "tool", "content": "x", "tool_call_id": "a"}], "messages[0] has the role 'tool' and content, which"),
    ],
)
def test_what_a_template_does_not_read_is_refused(plan: Plan, messages: Any, message: str) -> None:
    blind = "{% for message in messages if message.role != 'tool' %}{{ message.content }}{% endfor %}"
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        plan(blind, messages)


@pytest.mark.parametrize(
    ("template", "wish", "message"),
    [
        ("{{ tools }}{{ messages }}", {"tools": TOOLS}, "tools: the chat template shows no known format of calls"),
        ("{{ messages }}", {"tools": TOOLS, "settings": {"tool_parser": "hermes"}}, "never reads tools"),
        ("{{ messages }}", {"budget": 5}, "thinking_token_budget: the chat template shows no known form of thinking"),
        (HERMES, {"tools": TOOLS, "variables": {"tools": TOOLS}}, "tools must be given once"),
        (HERMES, {"tools": TOOLS, "choice": "some"}, "tool_choice must be one of none, auto, required"),
        (HERMES, {"choice": "required"}, "tool_choice must come with tools"),
        (
            HERMES,
            {"tools": TOOLS, "choice": {"type": "function", "function": {"name": "gone"}}},
            "tool_choice must name one of the tools (get_weather, now), got 'gone'",
        ),
        (HERMES, {"tools": TOOLS, "choice": {"type": "function"}}, 'tool_choice must be a text, {"type": "function"'),
        (HERMES, {"tools": [{"type": "web"}]}, "tools[0] must be"),
        (HERMES, {"tools": [*TOOLS, TOOLS[0]]}, "tools[2]: the name 'get_weather' is given to two tools"),
        (HERMES, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]: the name must be 1 to 64"),
        (
            HERMES,
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0] (f): parameters must be the JSON schema of an object",
        ),
        (
            HERMES,
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"required": "a"}}}]},
            "tools[0] (f): required of parameters must be a list of names",
        ),
        (HERMES, {"tools": [TOOLS[0]] * 300}, "tools must have at most 256 entries"),
        (HERMES, {"params": {"n": 1}}, "sampling_params must be SamplingParams, got dict"),
        (
            HERMES,
            {"params": SamplingParams(guided_decoding=GuidedDecodingParams(regex="a", frame="start: @form"))},
            "frame must be left out in a chat",
        ),
        (HERMES, {"effort": "much"}, "reasoning_effort must be one of"),
        (HERMES, {"budget": -1}, "thinking_token_budget must be an integer >= 0"),
        (
            HERMES,
            {
                "tools": TOOLS,
                "choice": "required",
                "params": SamplingParams(guided_decoding=GuidedDecodingParams(regex="a")),
            },
            "exclude each other: give one",
        ),
    ],
)
def test_wishes_that_cannot_be_followed(plan: Plan, template: str, wish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        plan(template, **wish)


def test_a_named_parser_needs_no_hint_in_the_template(plan: Plan) -> None:
    bare = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}"
    settings = {"tool_parser": "granite", "reasoning_parser": "think"}
    planned = plan(bare, tools=TOOLS, settings=settings)
    assert (planned.tool_format, planned.reasoning) == (TOOL_FORMATS["granite"], REASONING_FORMATS["think"])
    off = plan(HERMES, settings={"tool_parser": "none", "reasoning_parser": "none"})
    assert (off.tool_format, off.reasoning) == (None, None)


def test_without_tools_calls_are_text(plan: Plan) -> None:
    """Choice "none" hides the tools from the model."""
    for planned in (plan(HERMES), plan(HERMES, tools=TOOLS, choice="none")):
        assert planned.message(SAMPLES["hermes"].answer).content == SAMPLES["hermes"].answer
        assert "get_weather" not in planned.prompt.text
        assert planned.params == SamplingParams()


@pytest.mark.parametrize(
    ("wish", "shaped"),
    [
        ({"tools": TOOLS}, False),
        ({"tools": TOOLS, "choice": "required"}, True),
        ({"tools": TOOLS, "choice": {"type": "function", "function": {"name": "now"}}}, True),
        ({"tools": STRICT}, True),
        ({"tools": STRICT, "choice": "none"}, False),
        ({"tools": TOOLS, "parallel": False}, True),
    ],
)
def test_a_grammar_shapes_only_what_must_be(plan: Plan, wish: dict[str, Any], shaped: bool) -> None:
    planned = plan(HERMES, **wish)
    guided = planned.params.guided_decoding
    assert (guided is not None) is shaped
    assert bool(planned.owners) is shaped
    if guided is not None:
        assert "%json" in guided.text


def test_ids_have_the_form_that_templates_take(plan: Plan) -> None:
    assert re.fullmatch(r"call_[0-9a-f]{24}", plan(HERMES, tools=TOOLS).call_id("now", 0))
    assert re.fullmatch(r"[0-9a-f]{9}", plan(SAMPLES["mistral"].template, tools=TOOLS).call_id("now", 0))
    kimi = SAMPLES["kimi_k2"].template
    assert plan(kimi, tools=TOOLS).call_id("now", 1) == "functions.now:1"
    assert plan(kimi, history(True), tools=TOOLS).call_id("now", 1) == "functions.now:3"


THINKS = "{# </think> #}{% for message in messages %}{{ message.content }}{% endfor %}"
SWITCHED = THINKS + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
EFFORT = THINKS + "({{ reasoning_effort }})"


@pytest.mark.parametrize(
    ("template", "wish", "prompt", "unused"),
    [
        (SWITCHED, {"effort": "none"}, "Weather?<think></think>", ()),
        (SWITCHED, {"effort": "high"}, "Weather?", ()),
        (SWITCHED, {"effort": "none", "variables": {"enable_thinking": True}}, "Weather?", ()),
        (SWITCHED, {"variables": {"enable_thinking": False}}, "Weather?<think></think>", ()),
        (EFFORT, {"effort": "low"}, "Weather?(low)", ()),
        (THINKS, {"effort": "low"}, "Weather?", ("reasoning_effort",)),
        ("{{ messages[0].content }}", {"effort": "none"}, "Weather?", ("reasoning_effort",)),
    ],
)
def test_the_effort_is_told_in_the_templates_own_words(
    plan: Plan, template: str, wish: dict[str, Any], prompt: str, unused: tuple[str, ...]
) -> None:
    planned = plan(template, **wish)
    assert (planned.prompt.text, planned.unused) == (prompt, unused)


def test_the_prompt_may_begin_the_thinking(plan: Plan) -> None:
    opened = plan(THINKS + "{% if add_generation_prompt %}<think>\n{% endif %}")
    assert opened.message("Hm.</think>Hello.").reasoning == "Hm."
    assert plan(THINKS).message("Hm.</think>Hello.").reasoning is None
    asked = plan(THINKS, [{"role": "user", "content": "What is <think>?"}])
    assert asked.message("A tag.").content == "A tag."


def test_a_form_of_the_output_begins_after_the_thinking(plan: Plan) -> None:
    guided = SamplingParams(guided_decoding=GuidedDecodingParams(json_object=True))
    shape = plan(THINKS + "<think>", params=guided).params.guided_decoding
    assert shape is not None
    assert shape.json_object
    assert shape.frame is not None
    assert "@form" in shape.frame
    assert plan("{{ messages[0].content }}", params=guided).params == guided


def test_strict_tools_and_a_form_of_the_output_shape_one_answer(plan: Plan) -> None:
    """OpenAI's client sends both: its parse() refuses tools that are not strict."""
    guided = SamplingParams(guided_decoding=GuidedDecodingParams(json_object=True))
    for wish in ({"tools": STRICT}, {"tools": TOOLS, "parallel": False}):
        planned = plan(HERMES, params=guided, **wish)
        shape = planned.params.guided_decoding
        assert shape is not None
        assert shape.json_object
        assert shape.frame is not None
        assert "@form" in shape.frame
        assert "%json" in shape.frame
        assert planned.owners


def test_an_error_of_the_grammar_names_the_tool(plan: Plan) -> None:
    planned = plan(HERMES, tools=TOOLS, choice="required")
    line = next(number for number, name in planned.owners.items() if name == "now")
    error = InvalidRequestError(f"guided_decoding: grammar cannot be followed: at {line}(5): too odd\n  12 | more")
    assert str(planned.explain(error)) == (f"tools: the parameters of 'now' cannot be followed: at {line}(5): too odd")
    other = InvalidRequestError("temperature is odd")
    assert planned.explain(other) is other


def test_many_large_tools_cannot_be_enforced_together(plan: Plan) -> None:
    wide = {"type": "object", "properties": {f"key_{number}": {"type": "string"} for number in range(1000)}}
    tools = [{"type": "function", "function": {"name": f"f{number}", "parameters": wide}} for number in range(3)]
    plan(HERMES, tools=tools)
    with pytest.raises(InvalidRequestError, match="tools: their parameters together must have at most about"):
        plan(HERMES, tools=tools, choice="required")


@pytest.mark.parametrize("name", ["glm", "qwen3_coder", "pythonic"])
def test_definitions_that_each_parameter_repeats_cannot_fill_the_memory(plan: Plan, name: str) -> None:
    wide = {"$defs": {"d": {"const": "x" * 30_000}}, "properties": {f"k{number}": {} for number in range(4000)}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": wide}}]
    tracemalloc.start()
    with pytest.raises(InvalidRequestError, match="tools: their parameters together must have at most about"):
        plan(SAMPLES[name].template, tools=tools, choice="required")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 << 20


def test_templates_of_one_call_get_a_grammar_of_one(plan: Plan) -> None:
    sample = SAMPLES["llama3_json"].template
    several = plan(sample, tools=TOOLS, choice="required").params.guided_decoding
    one = plan(
        sample + "{# This model only supports single tool-calls at once! #}", tools=TOOLS, choice="required"
    ).params.guided_decoding
    assert several is not None
    assert one is not None
    assert '"; "' in several.text
    assert '"; "' not in one.text
    assert find_tool_format("auto", sample) is TOOL_FORMATS["llama3_json"]
