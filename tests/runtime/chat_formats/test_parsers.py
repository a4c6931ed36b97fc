"""The parsers of calls and of thinking: each format's sample, malformed answers, and any cut of any text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.chat_samples import CALLS, CONTENT, SAMPLES, TOOLS
from tensorwright.options.engine import REASONING_PARSERS, TOOL_PARSERS
from tensorwright.runtime.chat_formats import cohere, hermes, json_lists
from tensorwright.runtime.chat_formats.chat_parser import ChatParser
from tensorwright.runtime.chat_formats.events import (
    AssistantMessage,
    End,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallBegin,
    message_of,
)
from tensorwright.runtime.chat_formats.registry import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    find_reasoning_format,
    find_tool_format,
)
from tensorwright.runtime.chat_formats.tools import read_tools

KNOWN = read_tools(TOOLS)
DEEP = "[" * 5000


def events_of(pieces: list[str], tools: str = "none", reasoning: str = "none", opened: bool = False) -> list[Event]:
    parser = ChatParser(find_tool_format(tools, ""), find_reasoning_format(reasoning, ""), KNOWN, opened)
    events = [event for piece in pieces for event in parser.push(piece)]
    return [*events, *parser.finish()]


def parsed(text: str, tools: str = "none", reasoning: str = "none", opened: bool = False) -> AssistantMessage:
    """The message of a text, which must be the same for the text at once and character by character."""
    whole = message_of(events_of([text], tools, reasoning, opened))
    assert message_of(events_of(list(text), tools, reasoning, opened)) == whole
    return whole


def test_the_options_have_the_formats_names() -> None:
    assert set(TOOL_PARSERS) == {"auto", "none", *TOOL_FORMATS}
    assert set(REASONING_PARSERS) == {"auto", "none", *REASONING_FORMATS}
    assert set(SAMPLES) == set(TOOL_FORMATS), "each format has a sample"


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_becomes_its_message(name: str) -> None:
    sample = SAMPLES[name]
    message = parsed(sample.answer, name)
    assert message.content == (CONTENT if sample.content else None)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        (called, json.loads(arguments)) for called, arguments in CALLS
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_arguments_come_before_the_call_ends_and_calls_are_not_text(name: str) -> None:
    sample = SAMPLES[name]
    middle = sample.answer.index("Zürich") + 3
    parser = ChatParser(TOOL_FORMATS[name], None, KNOWN, False)
    events = parser.push(sample.answer[:middle])
    assert ToolCallBegin(0, "get_weather") in events
    early = "".join(event.text for event in events if isinstance(event, ToolArgumentsDelta))
    assert "city" in early
    assert early.endswith("Zür")
    rest = [*parser.push(sample.answer[middle:]), *parser.finish()]
    assert rest[-1] == End(2)
    assert not [event for event in rest if isinstance(event, TextDelta)]


@pytest.mark.parametrize("name", SAMPLES)
def test_text_without_calls_is_passed_on_as_it_is(name: str) -> None:
    for text in (
        "Plain text.",
        "  a < b and {c} [d] \n\n e ",
        "<",
        "<tool",
        "[",
        '{"answer": [1, 2]}',
        "",
        " \n",
        DEEP,
    ):
        message = parsed(text, name)
        assert (message.content, message.tool_calls) == (text, [])


@pytest.mark.parametrize("name", SAMPLES)
def test_an_answer_that_is_cut_off_keeps_what_it_has(name: str) -> None:
    """Every beginning of the sample gives a beginning of its message: calls with the beginning of their arguments, or
    text that was no call yet."""
    sample = SAMPLES[name]
    for end in range(len(sample.answer)):
        message = parsed(sample.answer[:end], name)
        for call, (called, arguments) in zip(message.tool_calls, CALLS, strict=False):
            assert call.name == called
            assert name in BARE or call.arguments == "{}" or arguments.startswith(call.arguments)
        assert "get_weather" not in (message.content or "") or not message.tool_calls


BARE = (
    "pythonic", "glm", "qwen3_coder", "harmony", "minimax", "seed", "step3", "function_gemma", "gemma4", "gemma3",
    "lfm2",
)  # fmt: skip
"""The formats whose arguments are not JSON, or end with a tag: half of an end tag may become a part of them."""
KIMI, KIMI_ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
INVOKE = '<minimax:tool_call><invoke name="now">'
WITHIN = '<tool_call>{"name": "now", "arguments": {'
MALFORMED: list[tuple[str, str, str | None, list[tuple[str, str]]]] = [
    # the format, the answer, the content, the calls
    ("hermes", "<tool_call>oops</tool_call>", "<tool_call>oops</tool_call>", []),
    ("hermes", "<tool_call>", "<tool_call>", []),
    ("hermes", "<tool_call>\n{}\n</tool_call>", "<tool_call>\n{}\n</tool_call>", []),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
    ("hermes", '<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
    ("hermes", r'<tool_call>{"name": "\ud800"}</tool_call>', r'<tool_call>{"name": "\ud800"}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', None, [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>', None, [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": }</tool_call>', None, [("now", "{}")]),
    ("hermes", '<tool_call>{"arguments": "", "name": "now"}</tool_call>', None, [("now", "{}")]),
    ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', None, [("now", "{}")]),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', None, [("now", '{"a": 1}')]),
    ("hermes", r'<tool_call>{"name": "now", "arguments": "{\"a\": 1}"}</tool_call>', None, [("now", '{"a": 1}')]),
    ("hermes", r'<tool_call>{"name": "now", "arguments": "\ud800"}</tool_call>', None, [("now", r'"\ud800"')]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call>', None, [("now", '{"a": tru}')]),
    ("hermes", WITHIN + '"a": "</tool_call>"}}</tool_call>', None, [("now", '{"a": "</tool_call>"}')]),
    ("hermes", WITHIN + "}</tool_call> and more", "and more", [("now", "{}")]),
    ("hermes", WITHIN + "}, oops", "oops", [("now", "{}")]),
    ("hermes", WITHIN + '"a": "never ended', None, [("now", '{"a": "never ended')]),
    ("hermes", WITHIN + '"a": ' + DEEP, None, [("now", '{"a": ' + DEEP)]),
    ("hermes", '<tool_call>{"name": "new_one", "arguments": {}}</tool_call>', None, [("new_one", "{}")]),
    ("llama3_json", '{"name": "new_one", "parameters": {}}', '{"name": "new_one", "parameters": {}}', []),
    ("llama3_json", '{"name": "now", "parameters": {}} done', "done", [("now", "{}")]),
    ("llama3_json", '<|python_tag|>{"name": "now", "parameters": {}}', None, [("now", "{}")]),
    ("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("llama3_json", '{"name": "now", "color": 1}', '{"name": "now", "color": 1}', []),
    ("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
    ("pythonic", "[new_one()]", "[new_one()]", []),
    ("pythonic", "[now(a=1, b=__import__('os'))]", "b=__import__('os'))]", [("now", '{"a": 1}')]),
    ("pythonic", "[now(a=True, b=None, c=-1.5, d=(1, 'x'))]", None,
     [("now", '{"a": true, "b": null, "c": -1.5, "d": [1, "x"]}')]),
    ("pythonic", "[now(a=b'x')]", "a=b'x')]", [("now", "{}")]),
    ("pythonic", "[now(a=1e999)]", None, [("now", '{"a": 1e999}')]),
    ("pythonic", "[now(a='x' + y)]", "+ y)]", [("now", '{"a": "x"}')]),
    ("pythonic", "[now(a=1 b=2)]", "b=2)]", [("now", '{"a": 1}')]),
    ("pythonic", "[now(1)]", "1)]", [("now", "{}")]),
    ("pythonic", "[now(a={1, 2})]", "a={1, 2})]", [("now", "{}")]),
    ("pythonic", "[now(a='never en", None, [("now", '{"a": "never en')]),
    ("pythonic", "[now(a=['never en", "a=['never en", [("now", "{}")]),
    ("pythonic", "[now(a=" + "-" * 20_000 + "1)]", "a=" + "-" * 20_000 + "1)]", [("now", "{}")]),
    ("pythonic", "[now(a=" + "[" * 60 + "]" * 60 + ")]", "a=" + "[" * 60 + "]" * 60 + ")]", [("now", "{}")]),
    ("pythonic", "<|python_start|>[now()]<|python_end|>", None, [("now", "{}")]),
    ("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", []),
    ("mistral", "[TOOL_CALLS] []", "[TOOL_CALLS] []", []),
    ("mistral", '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abc"}]', None, [("now", "{}")]),
    ("mistral", '[TOOL_CALLS] [{"name": "now", "arguments": {}}, oops', "oops", [("now", "{}")]),
    ("mistral_named", "[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}", None, [("now", "{}")]),
    ("mistral_named", "[TOOL_CALLS]now[ARGS]oops", "[TOOL_CALLS]now[ARGS]oops", []),
    ("mistral_named", "[TOOL_CALLS]" + "n" * 300, "[TOOL_CALLS]" + "n" * 300, []),
    ("harmony", "<|channel|>final<|message|>Yes.<|return|>", "Yes.", []),
    ("harmony", "<|channel|>commentary to=functions.now<|message|>", None, [("now", "{}")]),
    ("harmony", " to=functions.now<|channel|>commentary json<|message|>{}", None, [("now", "{}")]),
    ("harmony", " to=functions of all", " to=functions of all", []),
    ("harmony", "<|channel|>oops", "<|channel|>oops", []),
    ("harmony", "<|channel|>" + "x" * 2000, "<|channel|>" + "x" * 2000, []),
    ("deepseek_v31", "<｜tool▁calls▁begin｜>oops", "<｜tool▁calls▁begin｜>oops", []),
    ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}", None, [("now", "{}")]),
    ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>oops",
     "<｜tool▁call▁begin｜>oops", [("now", "{}")]),
    ("llama3_json", '{"name": "now", "parameters": {}}; ', None, [("now", "{}")]),
    ("deepseek_v31", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}", None, [("function", "{}")]),
    ("glm", "<tool_call>now", "<tool_call>now", []),
    ("glm", "<tool_call>now<arg_key>a</arg_key><arg_value>[1, 2]</arg_value></tool_call>", None,
     [("now", '{"a": [1, 2]}')]),
    ("glm", "<tool_call>now<arg_key>a</arg_key><arg_value>NaN</arg_value></tool_call>", None,
     [("now", '{"a": "NaN"}')]),
    ("glm", "<tool_call>now<arg_key>a</arg_key>oops", "<arg_key>a</arg_key>oops", [("now", "{}")]),
    ("glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a\nb", None, [("get_weather", '{"city": "a\\nb')]),
    ("qwen3_coder", "<function=now>\n</function>", None, [("now", "{}")]),
    ("qwen3_coder", "<function=" + "x" * 1025 + "<function=now>", "<function=" + "x" * 1025, [("now", "{}")]),
    ("qwen3_coder", "<tool_call>oops", "<tool_call>oops", []),
    ("qwen3_coder", "<function=now>\n<parameter=a>\nTrue\n</parameter>\n</function>", None, [("now", '{"a": true}')]),
    ("kimi_k2", f"{KIMI}now{KIMI_ARGUMENTS}{{}}", None, [("now", "{}")]),
    ("kimi_k2", f"{KIMI}functions.a.now:12 {KIMI_ARGUMENTS} {{}}<|tool_call_end|> Done", "Done", [("a.now", "{}")]),
    ("kimi_k2", f"{KIMI}functions.now:0", f"{KIMI}functions.now:0", []),
    ("kimi_k2", f"{KIMI}functions.now:0{KIMI_ARGUMENTS}oops", f"{KIMI}functions.now:0{KIMI_ARGUMENTS}oops", []),
    ("kimi_k2", "<|tool_calls_section_begin|>null", "<|tool_calls_section_begin|>null", []),
    ("cohere", "<|START_RESPONSE|>Hello.\n<|END_RESPONSE|>", "Hello.", []),
    ("cohere", "<|START_TEXT|>Hello.<|END_TEXT|>", "Hello.", []),
    ("cohere", '<|START_ACTION|>{"tool_name": "now", "parameters": {}}<|END_ACTION|>', None, [("now", "{}")]),
    ("cohere", '<|START_ACTION|>[{"name": "now"}]', '<|START_ACTION|>[{"name": "now"}]', []),
    ("cohere", "<|START_ACTION|>[\n]<|END_ACTION|>", "<|START_ACTION|>[\n]<|END_ACTION|>", []),
    ("minimax", INVOKE + "</invoke></minimax:tool_call>", None, [("now", "{}")]),
    ("minimax", INVOKE + '<parameter name="a">[1, 2]</parameter></invoke> and', "and", [("now", '{"a": [1, 2]}')]),
    ("minimax", INVOKE + '<parameter name="a">1', None, [("now", '{"a": ')]),
    ("minimax", INVOKE + "<parameter oops", "<parameter oops", [("now", "{}")]),
    ("minimax", '<minimax:tool_call>{"name": "now"}', '<minimax:tool_call>{"name": "now"}', []),
    ("minimax", INVOKE + "</invoke><invoke oops", "<invoke oops", [("now", "{}")]),
    ("seed", "<seed:tool_call>\n</function>", "<seed:tool_call>\n</function>", []),
    ("seed", "<seed:tool_call><function=now><parameter=a>True</parameter></function></seed:tool_call>", None,
     [("now", '{"a": true}')]),
    ("step3", "<｜tool_calls_begin｜><｜tool_call_begin｜>oops", "<｜tool_calls_begin｜><｜tool_call_begin｜>oops", []),
    ("function_gemma", "<start_function_call>call:now{a:Paris, b:-1.5,c:None}<end_function_call>", None,
     [("now", '{"a": "Paris", "b": -1.5, "c": null}')]),
    ("function_gemma", "<start_function_call>call now{}", "<start_function_call>call now{}", []),
    ("function_gemma", "<start_function_call>call:now{a:}", "a:}", [("now", "{}")]),
    ("function_gemma", "<start_function_call>call:now{a:<escape>b\n{c}", None, [("now", '{"a": "b\\n{c}')]),
    ("function_gemma", "<start_function_call>call:now{a:1 b:2}", ":2}", [("now", '{"a": "1 b"}')]),
    ("gemma4", '<|tool_call>call:now{a:[<|"|>b, c<|"|>,{<|"|>d<|"|>:true,e:"f"},[]],g:{}}<tool_call|>', None,
     [("now", '{"a": ["b, c", {"d": true, "e": "f"}, []], "g": {}}')]),
    ("gemma4", "<|tool_call>call:now{a:" + "[" * 60, "a:" + "[" * 60, [("now", "{}")]),
    ("gemma4", '<|tool_call>call:now{a:[<|"|>b', 'a:[<|"|>b', [("now", "{}")]),
    ("gemma3", "```tool_code\nprint(now())\n```", "```tool_code\nprint(now())\n```", []),
    ("gemma3", "```tool_code\nnow(a='b')", None, [("now", '{"a": "b"}')]),
    ("gemma3", "```python\nnow()\n```", "```python\nnow()\n```", []),
    ("lfm2", "<|tool_call_start|>[now(a='b')]<|tool_call_end|>Done.", "Done.", [("now", '{"a": "b"}')]),
    ("lfm2", '<|tool_call_start|>[{"name": "now", "arguments": {}}]<|tool_call_end|>', None, [("now", "{}")]),
    ("lfm2", "<|tool_call_start|>oops", "<|tool_call_start|>oops", []),
    ("hunyuan", "<answer>\nHello.\n</answer>", "Hello.", []),
    ("tool_calls", "<tool_calls>[]</tool_calls>", "<tool_calls>[]</tool_calls>", []),
    ("ernie", "\n<response>\nHello.\n</response>\n", "Hello.", []),
    ("ernie", "<response>\nHello. <response", "Hello. <response", []),
    ("granite", '<tool_call>[{"name": "now", "arguments": {}}]', None, [("now", "{}")]),
    ("phi4", '<|tool_call|>{"name": "now", "arguments": {}}<|/tool_call|>', None, [("now", "{}")]),
    ("phi4_functools", 'functools{"name": 1}', 'functools{"name": 1}', []),
    ("phi4_functools", "functools[] This is text", "functools[] This is text", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), MALFORMED)
def test_malformed_answers(name: str, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    message = parsed(text, name)
    assert (message.content, [(call.name, call.arguments) for call in message.tool_calls]) == (content, calls)


@pytest.mark.parametrize(
    ("schema", "written", "meant"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12", "12"),
        ({"type": ["string", "null"]}, '{"a": 1}', '{"a": 1}'),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": 5}, "12", 12),
        ({}, "12", 12),
    ],
)
def test_bare_values_that_may_be_texts(schema: Any, written: str, meant: Any) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    tools = read_tools([{"type": "function", "function": function}])
    parser = ChatParser(TOOL_FORMATS["qwen3_coder"], None, tools, False)
    answer = f"<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>"
    [call] = message_of([*parser.push(answer), *parser.finish()]).tool_calls
    assert json.loads(call.arguments) == {"a": meant}


HELLO = AssistantMessage("Hello.", "Hm.")
THOUGHTS: list[tuple[str, str, bool, AssistantMessage]] = [
    # the format, the answer, whether the prompt began the thinking, the message
    ("think", "<think>\nHm.\n</think>\n\nHello.", False, HELLO),
    ("think", "Hm.\n</think>\n\nHello.", True, HELLO),
    ("think", "<think>Hm.</think>Hello.", True, HELLO),
    ("think", "\n<think>Hm.</think>\nHello.", False, HELLO),
    ("think", "Hello.", False, AssistantMessage("Hello.")),
    ("think", " Hello <think>x</think>", False, AssistantMessage(" Hello <think>x</think>")),
    ("think", "<think>\n\n</think>\n\nHello.", False, AssistantMessage("Hello.")),
    ("think", "<think>\nHm. </thi", False, AssistantMessage(None, "Hm. </thi")),
    ("think", "Hm.", True, AssistantMessage(None, "Hm.")),
    ("think_brackets", "[THINK]Hm.[/THINK]Hello.", False, HELLO),
    ("seed_think", "<seed:think>Hm.</seed:think>Hello.", False, HELLO),
    ("cohere_thinking", "<|START_THINKING|>Hm.<|END_THINKING|>Hello.", False, HELLO),
    ("gemma_channel", "<|channel>thought\nHm.<channel|>Hello.", False, HELLO),
    ("gemma_channel", "<|channel>thought\n<channel|>Hello.", True, AssistantMessage("Hello.")),
    ("gemma_channel", "<|channel>though", False, AssistantMessage(None, "though")),
    (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.",
        False,
        HELLO,
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>",
        False,
        AssistantMessage(None, "A\nB"),
    ),
]


@pytest.mark.parametrize(("name", "text", "opened", "message"), THOUGHTS)
def test_thinking(name: str, text: str, opened: bool, message: AssistantMessage) -> None:
    assert parsed(text, "harmony" if name == "harmony" else "none", name, opened) == message


@pytest.mark.parametrize("name", SAMPLES)
def test_thinking_before_calls(name: str) -> None:
    sample = SAMPLES[name]
    if name == "harmony":
        answer = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + sample.answer
        message = parsed(answer, name, "harmony")
    else:
        message = parsed(f"<think>\nHm.\n</think>\n\n{sample.answer}", name, "think")
    assert (message.reasoning, len(message.tool_calls)) == ("Hm.", 2)


FRAMES = (*cohere.TAGS, *hermes.RESPONSE, *json_lists.ANSWER)


def _words() -> list[str]:
    """The marks of all formats, which random answers are made of."""
    markers = {marker for form in (*TOOL_FORMATS.values(), *REASONING_FORMATS.values()) for marker in form.markers}
    samples = [piece for sample in SAMPLES.values() for piece in (sample.single, sample.answer)]
    plain = ["now", "get_weather", "(", ")", "[", "]", "{", "}", '"', "\\", ",", ":", " ", "\n", "=", "'", "é", "3"]
    keys = [
        '{"name": "now", "arguments": ',
        '"name"',
        "functools",
        "<function=now>",
        "<parameter=a>",
        "to=functions.now",
    ]
    return [*sorted(markers), *samples, *plain, *keys]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_any_cut_gives_the_same_message_and_loses_nothing(data: Any) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(_words()), max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    tools = data.draw(st.sampled_from(sorted(TOOL_FORMATS)))
    reasoning = "harmony" if tools == "harmony" else data.draw(st.sampled_from(["none", "think", "think_brackets"]))
    opened = data.draw(st.booleans())
    whole = events_of([text], tools, reasoning, opened)
    message = message_of(whole)
    assert message_of(events_of(pieces, tools, reasoning, opened)) == message
    assert message_of(events_of(list(text), tools, reasoning, opened)) == message
    assert whole[-1] == End(len(message.tool_calls))
    begun = [event.index for event in whole if isinstance(event, ToolCallBegin)]
    assert begun == list(range(len(begun)))
    framed = any(tag in text for tag in FRAMES)  # the tags around answers are no text
    if (
        not any(isinstance(event, (ToolCallBegin, ReasoningDelta)) for event in whole)
        and reasoning == "none"
        and not framed
    ):
        assert (message.content or "") == text


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize(("value", "times"), [("[], ", 2000), ('{"a": "\\n"}, ', 500)])
def test_no_piece_of_an_answer_takes_more_work_than_its_length(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, times: int
) -> None:
    """A long value costs as much at its last character as at any other. Work is counted in calls of functions, and in
    the characters that JSON's parser reads in one call."""
    loads, read = json.loads, [0]

    def counted(text: str, **more: Any) -> Any:
        read.append(len(text))
        return loads(text, **more)

    monkeypatch.setattr(json, "loads", counted)
    answer = SAMPLES[name].single.replace("3", f"[{value * times}0]")
    parser = ChatParser(TOOL_FORMATS[name], None, KNOWN, False)
    calls: list[int] = []

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[-1] += event in ("call", "c_call")

    def work(step: Callable[[], list[Event]]) -> list[Event]:
        calls.append(0)
        sys.setprofile(count)
        try:
            return step()
        finally:
            sys.setprofile(None)

    pieces = [answer[at : at + 4] for at in range(0, len(answer), 4)]
    events = [event for piece in pieces for event in work(partial(parser.push, piece))]
    events += work(parser.finish)
    [call] = message_of(events).tool_calls
    monkeypatch.undo()
    assert len(json.loads(call.arguments)["days"]) == times + 1
    assert max(calls) < 300
    assert max(read) < 300


def test_a_long_answer_takes_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held back is short, however long the answer is: the text that the reader keeps is that of one piece."""
    parser = ChatParser(TOOL_FORMATS["hermes"], REASONING_FORMATS["think"], KNOWN, False)
    kept = []
    for piece in ["<think>", *["word "] * 2000, "</think>", *["<tool "] * 2000, WITHIN, *['"a": "b", '] * 2000]:
        parser.push(piece)
        kept.append(len(parser._reader._text) - parser._reader._at)
    assert max(kept) < 20
