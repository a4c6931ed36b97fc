"""The grammars of calls admit what templates render and nothing that does not fit the tools' schemas.

The tokens are those of all bytes, and the markers: as tokens of the model, or spelled by bytes.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

import pytest

from support.chat_samples import SAMPLES, TOOLS
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.chat_formats.answer_grammar import calls_grammar, framed_grammar
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.registry import REASONING_FORMATS, TOOL_FORMATS
from tensorwright.runtime.chat_formats.tools import Tools, read_tools
from tensorwright.runtime.guided.grammar import LIMITS
from tensorwright.runtime.guided.library import LibraryMatcher, LibraryTokens
from tensorwright.runtime.guided.spelling import SPECIAL

MARKERS = sorted({marker for form in (*TOOL_FORMATS.values(), *REASONING_FORMATS.values()) for marker in form.markers})
IDS = {marker: 256 + number for number, marker in enumerate(MARKERS)}
MARKED = re.compile("|".join(re.escape(marker) for marker in MARKERS))


@pytest.fixture(scope="module")
def tokens() -> LibraryTokens:
    spelled = [bytes([byte]) for byte in range(256)] + [SPECIAL + each.encode() for each in (*MARKERS, "<|end_of_it|>")]
    lengths = array("I", map(len, spelled))
    return LibraryTokens(lengths, b"".join(spelled), (256 + len(MARKERS),), lambda text: list(text.encode()))


def encode(text: str, ids: dict[str, int]) -> list[int]:
    """The tokens of a text. ids: those markers that are tokens."""
    parts: list[int] = []
    at = 0
    for found in MARKED.finditer(text) if ids else ():
        parts += [*text[at : found.start()].encode(), ids[found[0]]]
        at = found.end()
    return [*parts, *text[at:].encode()]


def admits(tokens: LibraryTokens, lark: str, text: str, ids: dict[str, int], form: str = "") -> bool:
    """Whether the text is one that the grammar admits. form: the grammar for "@form"."""
    grammars = [{"name": "frame", "lark_grammar": lark}, *([{"name": "form", "lark_grammar": form}] if form else [])]
    matcher = LibraryMatcher.compile(tokens, json.dumps({"grammars": grammars}), LIMITS)
    assert not matcher.is_error, matcher.error
    return matcher.consume(encode(text, ids)) and matcher.is_accepting


def grammar_of(name: str, tools: Tools, ids: dict[str, int], reasoning: str | None = None, **more: Any) -> str:
    thinking = None if reasoning is None else REASONING_FORMATS[reasoning]
    return calls_grammar(
        LarkWriter(ids), TOOL_FORMATS[name], thinking, tools, more.get("prompt", ""), more.get("budget")
    )


AS_TOKENS = pytest.mark.parametrize("ids", [IDS, {}], ids=["tokens", "bytes"])
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
ONE_AT_A_TIME = ("harmony",)
"""The formats whose models end after each call."""


@AS_TOKENS
@pytest.mark.parametrize("name", SAMPLES)
def test_required_calls(tokens: LibraryTokens, name: str, ids: dict[str, int]) -> None:
    sample = SAMPLES[name]
    required = grammar_of(name, read_tools(TOOLS, "required"), ids)
    assert admits(tokens, required, sample.single, ids)
    assert admits(tokens, required, sample.calls.lstrip("\n"), ids) is (name not in ONE_AT_A_TIME)
    assert not admits(tokens, required, sample.wrong, ids)
    assert not admits(tokens, required, "No.", ids)
    assert not admits(tokens, required, "", ids)
    assert not admits(tokens, required, sample.single[:-1], ids)
    one = grammar_of(name, read_tools(TOOLS, "required", False), ids)
    assert admits(tokens, one, sample.single, ids)
    assert not admits(tokens, one, sample.calls.lstrip("\n"), ids)
    choice = {"type": "function", "function": {"name": "now"}}
    assert not admits(tokens, grammar_of(name, read_tools(TOOLS, choice), ids), sample.single, ids)


@AS_TOKENS
@pytest.mark.parametrize("name", SAMPLES)
def test_chosen_calls(tokens: LibraryTokens, name: str, ids: dict[str, int]) -> None:
    """Text is free up to the tag that begins a call; then the call follows its schema."""
    sample = SAMPLES[name]
    chosen = grammar_of(name, read_tools(STRICT), ids)
    plain = "<|channel|>final<|message|>No." if name == "harmony" else "No."
    assert admits(tokens, chosen, plain, ids)
    assert admits(tokens, chosen, sample.content + sample.single, ids)
    assert not admits(tokens, chosen, sample.content + sample.wrong, ids)
    assert admits(tokens, chosen, sample.answer, ids) is (name not in ONE_AT_A_TIME)
    one = grammar_of(name, read_tools(STRICT, "auto", False), ids)
    assert admits(tokens, one, sample.content + sample.single, ids)
    assert not admits(tokens, one, sample.answer, ids)


@AS_TOKENS
@pytest.mark.parametrize(
    ("name", "framed"),
    [
        ("cohere", "<|START_RESPONSE|>{}<|END_RESPONSE|>"),
        ("ernie", "<response>\n{}\n</response>"),
        ("hunyuan", "<answer>\n{}\n</answer>"),
    ],
)
def test_an_answer_may_stand_in_its_frame(tokens: LibraryTokens, name: str, framed: str, ids: dict[str, int]) -> None:
    chosen = grammar_of(name, read_tools(STRICT), ids)
    assert admits(tokens, chosen, framed.format("No."), ids)
    assert not admits(tokens, grammar_of(name, read_tools(TOOLS, "required"), ids), framed.format("No."), ids)
    shaped = framed_grammar(LarkWriter(ids), TOOL_FORMATS[name], None, read_tools(TOOLS), "", None)
    for answer, holds in (("yes", True), (framed.format("yes"), True), (framed.format("maybe"), False)):
        assert admits(tokens, shaped, answer, ids, 'start: "yes" | "no"') is holds


@AS_TOKENS
@pytest.mark.parametrize("name", SAMPLES)
def test_tools_that_are_not_strict_take_any_arguments(tokens: LibraryTokens, name: str, ids: dict[str, int]) -> None:
    sample = SAMPLES[name]
    mixed = grammar_of(name, read_tools([TOOLS[0], STRICT[1]]), ids)
    assert admits(tokens, mixed, sample.content + sample.wrong, ids)
    assert admits(tokens, mixed, sample.content + sample.wrong.replace("city", "town"), ids)
    assert not admits(tokens, mixed, sample.content + sample.wrong.replace("get_weather", "gone"), ids)


@AS_TOKENS
def test_thinking_comes_before_calls(tokens: LibraryTokens, ids: dict[str, int]) -> None:
    single = SAMPLES["hermes"].single
    required = read_tools(TOOLS, "required")
    thinks = grammar_of("hermes", required, ids, "think")
    assert admits(tokens, thinks, single, ids)
    assert admits(tokens, thinks, f"<think>\nHm.\n</think>\n\n{single}", ids)
    assert not admits(tokens, thinks, f"Hm.\n</think>\n\n{single}", ids)
    opened = grammar_of("hermes", required, ids, "think", prompt="<think>\n")
    assert admits(tokens, opened, f"Hm.\n</think>\n\n{single}", ids)
    assert not admits(tokens, opened, single, ids)
    over = grammar_of("hermes", required, ids, "think", prompt="<think>\n\n</think>\n\n")
    assert admits(tokens, over, single, ids)
    assert not admits(tokens, over, f"<think></think>{single}", ids)


def test_the_budget_ends_the_thinking(tokens: LibraryTokens) -> None:
    """Each byte is a token here."""
    required = read_tools(TOOLS, "required")
    for name, before, thought, after in (
        ("hermes", "", "Hm.", "</think>"),
        ("harmony", "<|channel|>analysis<|message|>", "Hm.", "<|end|><|start|>assistant"),
    ):
        single = SAMPLES[name].single
        reasoning = "harmony" if name == "harmony" else "think"
        for budget, holds in ((3, True), (2, False), (0, False)):
            lark = grammar_of(name, required, IDS, reasoning, prompt="<think>", budget=budget)
            assert admits(tokens, lark, before + thought + after + single, IDS) is holds
        assert admits(tokens, grammar_of(name, required, IDS, reasoning, prompt="<think>", budget=0),
                      before + after + single, IDS)  # fmt: skip
    with pytest.raises(InvalidRequestError, match="thinking_token_budget needs a model with </think> as one token"):
        grammar_of("hermes", required, {}, "think", budget=3)


@AS_TOKENS
def test_a_form_of_the_content_comes_after_the_thinking_or_calls_in_its_place(
    tokens: LibraryTokens, ids: dict[str, int]
) -> None:
    form = 'start: "yes" | "no"'
    single = SAMPLES["hermes"].single
    for tools, calls in ((Tools(), False), (read_tools(TOOLS), True)):
        frame = framed_grammar(
            LarkWriter(ids), TOOL_FORMATS["hermes"], REASONING_FORMATS["think"], tools, "<think>\n", None
        )
        assert admits(tokens, frame, "Hm.</think>\n\nyes", ids, form)
        assert not admits(tokens, frame, "yes", ids, form)
        assert admits(tokens, frame, f"Hm.</think>\n\n{single}", ids, form) is calls
    frame = framed_grammar(LarkWriter(ids), TOOL_FORMATS["harmony"], REASONING_FORMATS["harmony"], Tools(), "", None)
    answer = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>no"
    assert admits(tokens, frame, answer, ids, form)
    assert not admits(tokens, frame, answer + "!", ids, form)


def schema(**properties: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("glm", "<tool_call>f\n<arg_key>unit</arg_key>\n<arg_value>{}</arg_value>\n"
                "<arg_key>at</arg_key>\n<arg_value>[{}]</arg_value>\n</tool_call>"),
        ("minimax", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="unit">{}</parameter>\n'
                    '<parameter name="at">[{}]</parameter>\n</invoke>\n</minimax:tool_call>'),
        ("gemma4", '<|tool_call>call:f{{unit:<|"|>{}<|"|>,at:[{}]}}<tool_call|>'),
    ],
)  # fmt: skip
def test_bare_values_follow_what_their_grammar_can(tokens: LibraryTokens, name: str, call: str) -> None:
    parameters = schema(unit={"type": "string", "enum": ["C", "F"]}, at={"$ref": "#/$defs/place"})
    parameters[0]["function"]["parameters"]["$defs"] = {"place": {"type": "array", "items": {"type": "integer"}}}
    lark = grammar_of(name, read_tools(parameters, "required"), IDS)
    assert admits(tokens, lark, call.format("C", "1, 2"), IDS)
    assert not admits(tokens, lark, call.format("K", "1, 2"), IDS)
    assert not admits(tokens, lark, call.format("C", "x"), IDS)


@pytest.mark.parametrize(
    ("name", "tools", "message"),
    [
        ("glm", schema(day={"type": "string", "pattern": "a+"}), "'pattern' of the parameter 'day' of 'f' cannot be"),
        ("qwen3_coder", schema(day={"type": "string", "minLength": 1}), "'minLength' of the parameter 'day' of 'f'"),
        ("qwen3_coder", schema(day={"type": "string", "enum": 5}), "enum of the parameter 'day' of 'f' must be a list"),
        ("pythonic", schema(**{"a b": {}}), "the parameter 'a b' of 'f' is no name"),
        (
            "glm",
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["x"]}}}],
            "required of 'f' names 'x', which properties lacks",
        ),
    ],
)
def test_what_a_format_cannot_enforce_is_refused_by_name(name: str, tools: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        grammar_of(name, read_tools(tools, "required"), IDS)
    grammar_of(name, read_tools(TOOLS, "required"), IDS)


def test_a_schema_that_the_library_refuses_has_its_line(tokens: LibraryTokens) -> None:
    tools = read_tools([*TOOLS, *schema(a={"type": "array", "uniqueItems": True})], "required")
    writer = LarkWriter(IDS)
    lark = calls_grammar(writer, TOOL_FORMATS["hermes"], None, tools, "", None)
    matcher = LibraryMatcher.compile(tokens, json.dumps({"grammars": [{"lark_grammar": lark}]}), LIMITS)
    assert matcher.is_error
    line = re.search(r"at (\d+)\(", matcher.error)
    assert line is not None, matcher.error
    assert writer.owners[int(line[1])] == "f"
