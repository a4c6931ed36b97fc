"""Plans the answer to a conversation: its prompt, its parameters, and the parser of its text.

LLM.chat and the server plan with this file, so both render, enforce and parse alike.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.number_checks import MAX_INT32, is_int
from tensorwright.runtime.api.chat import Message, chat_prompt, check_chat, choose_template
from tensorwright.runtime.api.chat_history import with_written_calls
from tensorwright.runtime.base.parameter_checks import shown
from tensorwright.runtime.chat_formats.answer_grammar import calls_grammar, framed_grammar
from tensorwright.runtime.chat_formats.chat_parser import ChatParser
from tensorwright.runtime.chat_formats.events import AssistantMessage, message_of
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.reasoning import ReasoningFormat
from tensorwright.runtime.chat_formats.registry import find_reasoning_format, find_tool_format
from tensorwright.runtime.chat_formats.tool_format import ToolFormat
from tensorwright.runtime.chat_formats.tools import Tools
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.spelling import marker_ids
from tensorwright.runtime.requests.prompts import RenderedPrompt, check_kind
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.text.chat_template import compile_template

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The values of reasoning_effort."""
SWITCHES = ("enable_thinking", "thinking")
"""The variables with which templates turn thinking on and off."""
CALLS = "tool_calls"
"""The entry of a message with calls, which a template names if it renders them."""
ONE_CALL = "only supports single tool-calls"
"""The words with which Llama's templates refuse an earlier message of several calls."""
AT_LINE = re.compile(r"\bat (\d+)\(")
"""The line of a grammar in llguidance's messages."""


@dataclass(frozen=True)
class ChatSettings:
    """What an engine's chats have in common: LLM's keywords of the same names."""

    chat_template: str | None = None
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"


@dataclass(frozen=True)
class ChatWish:
    """What one call wants, beside its messages and parameters.

    variables: further variables for the template. effort: one of EFFORTS, None leaves it to the model. budget: the most
    tokens of thinking, None means any number. thinks: whether the model is to think, in the words that its template has
    for it; None leaves that to the model. Where it is given, a model that cannot think does without a budget.
    """

    tools: Tools = field(default_factory=Tools)
    add_generation_prompt: bool = True
    variables: dict[str, Any] = field(default_factory=dict)
    effort: str | None = None
    budget: int | None = None
    thinks: bool | None = None

    def __post_init__(self) -> None:
        if self.effort is not None and self.effort not in EFFORTS:
            raise InvalidRequestError(f"reasoning_effort must be one of {', '.join(EFFORTS)}, got {shown(self.effort)}")
        if self.budget is not None and not (is_int(self.budget) and 0 <= self.budget <= MAX_INT32):
            raise InvalidRequestError(f"thinking_token_budget must be an integer >= 0, got {shown(self.budget)}")


@dataclass(frozen=True)
class ChatPlan:
    """A planned answer. unused: the names of wishes that this model cannot follow, and that change nothing.

    owners: the line of the grammar on which each tool's schema stands, and the tool's name. earlier_calls: how many
    calls the conversation has so far.
    """

    prompt: RenderedPrompt
    params: SamplingParams
    tool_format: ToolFormat | None
    reasoning: ReasoningFormat | None
    tools: Tools
    unused: tuple[str, ...] = ()
    owners: dict[int, str] = field(default_factory=dict)
    earlier_calls: int = 0

    def parser(self) -> ChatParser:
        """Returns a parser of one completion's text."""
        opened = self.reasoning is not None and self.reasoning.is_open(self.prompt.text)
        return ChatParser(self.tool_format, self.reasoning, self.tools, opened)

    def message(self, text: str) -> AssistantMessage:
        """Returns the message that a whole completion is."""
        parser = self.parser()
        return message_of([*parser.push(text), *parser.finish()])

    def call_id(self, name: str, index: int) -> str:
        """Returns an id for a call, in the form that the format of calls wants. index: the number of the call in the
        answer, from 0."""
        if self.tool_format is None or self.tool_format.call_id is None:
            return f"call_{secrets.token_hex(12)}"
        return self.tool_format.call_id(name, self.earlier_calls + index)

    def explain(self, error: InvalidRequestError) -> InvalidRequestError:
        """Returns the error of a grammar that the tools made in words that name the tool; any other error as it is."""
        words = str(error)
        if not self.owners or not words.startswith("guided_decoding: grammar"):
            return error
        line = AT_LINE.search(words)
        name = self.owners.get(int(line[1])) if line else None
        subject = "tools: the parameters" if name is None else f"tools: the parameters of {name!r}"
        reason = words.removeprefix("guided_decoding: grammar").strip().partition("\n")[0]
        return InvalidRequestError(f"{subject} {reason}")


def plan_chat(
    engine: EngineDir,
    settings: ChatSettings,
    messages: Sequence[Message],
    wish: ChatWish,
    params: SamplingParams,
) -> ChatPlan:
    """Plans one answer. Raises InvalidRequestError."""
    check_chat(engine, messages)
    check_kind(params)
    tools = wish.tools
    shown_tools = [tool.for_template for tool in tools.declared] if tools.choice != "none" else None
    if shown_tools and wish.variables.get("tools"):
        raise InvalidRequestError("tools must be given once, not among the template's variables as well")
    template = choose_template(engine, settings.chat_template, shown_tools or wish.variables.get("tools"))
    tool_format, reasoning = _formats(settings.tool_parser, settings.reasoning_parser, template)
    if tools.choice != "none" and tool_format is None:
        raise InvalidRequestError(
            "tools: the chat template shows no known format of calls, so they could not be told from text: name the "
            "format with tool_parser (of the server: --tool-parser)"
        )
    variables = dict(wish.variables) | ({"tools": shown_tools} if shown_tools else {})
    budget, unused = _follow_effort(wish, template, reasoning, variables)
    if wish.thinks is not None:
        budget, more = _follow_switch(wish.thinks, budget, template, reasoning, variables)
        unused += more
    thought_key = "reasoning_content" if reasoning is None else reasoning.thought_key
    if tool_format is not None and tool_format.write is not None and CALLS not in template:
        messages = with_written_calls(messages, tool_format.write)
    prompt = chat_prompt(
        engine, messages, settings.chat_template, wish.add_generation_prompt, variables, thought_key=thought_key
    )
    if tools.choice == "none" and not (tool_format is not None and tool_format.frames_answer):
        tool_format = None
    if budget is not None and reasoning is None:
        raise InvalidRequestError(
            "thinking_token_budget: the chat template shows no known form of thinking: leave it out, or name the form "
            "with reasoning_parser (of the server: --reasoning-parser)"
        )
    written = replace(tools, parallel=tools.parallel and ONE_CALL not in template)
    params, owners = _shape(engine, params, tool_format, reasoning, written, prompt.text, budget, tools.shaped)
    earlier = sum(len(message.get(CALLS) or ()) for message in messages)
    return ChatPlan(prompt, params, tool_format, reasoning, tools, unused, owners, earlier)


@lru_cache(maxsize=64)
def _formats(
    tool_parser: str, reasoning_parser: str, template: str
) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    return find_tool_format(tool_parser, template), find_reasoning_format(reasoning_parser, template)


def _follow_effort(
    wish: ChatWish, template: str, reasoning: ReasoningFormat | None, variables: dict[str, Any]
) -> tuple[int | None, tuple[str, ...]]:
    """Tells the template of the effort, in the variables that it reads. Returns the budget of thinking, and what could
    not be followed: an effort of "none" ends the thinking at once where the template has no word for it."""
    if wish.effort is None:
        return wish.budget, ()
    reads = compile_template(template).reads
    told = [name for name in ("reasoning_effort", *SWITCHES) if name in reads]
    for name in told:
        variables.setdefault(name, wish.effort if name == "reasoning_effort" else wish.effort != "none")
    if told:
        return wish.budget, ()
    if wish.effort == "none" and reasoning is not None:
        return 0, ()
    return wish.budget, ("reasoning_effort",)


def _follow_switch(
    thinks: bool, budget: int | None, template: str, reasoning: ReasoningFormat | None, variables: dict[str, Any]
) -> tuple[int | None, tuple[str, ...]]:
    """Turns the template's thinking on or off. Returns what `_follow_effort` returns. Where the template has no switch,
    thinking that is not wanted ends at once."""
    if reasoning is None:
        return None, ("thinking",) if thinks else ()
    switches = [name for name in SWITCHES if name in compile_template(template).reads]
    variables.update(dict.fromkeys(switches, thinks))
    return (budget if thinks or switches else 0), ()


def _shape(
    engine: EngineDir,
    params: SamplingParams,
    tool_format: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    tools: Tools,
    prompt: str,
    budget: int | None,
    shaped: bool,
) -> tuple[SamplingParams, dict[int, str]]:
    """Returns the parameters with the grammar that the answer needs, and with the special tokens that its parser must
    see; and the owners of the grammar's lines. shaped: whether the tools need a grammar."""
    markers = tuple(marker for form in (tool_format, reasoning) if form is not None for marker in form.markers)
    tokenizer = engine.tokenizer
    assert tokenizer is not None, "the prompt could not have been rendered"
    kept = tuple(dict.fromkeys(marker for marker in markers if tokenizer.special_id(marker) is not None))
    if params.detokenize and params.skip_special_tokens and kept:
        params = replace(params, kept_special_tokens=(*params.kept_special_tokens, *kept))
    guided = params.guided_decoding
    if tools.forced and guided is not None:
        raise InvalidRequestError(
            "a tool that must be called (tool_choice) and another form of the output (response_format or guided "
            "decoding) exclude each other: give one"
        )
    if guided is not None and guided.frame is not None:
        raise InvalidRequestError("guided_decoding: frame must be left out in a chat, which makes its own")
    thinks = reasoning is not None and (budget is not None or guided is not None)
    if not (shaped or thinks or (guided is not None and tool_format is not None)):
        return params, {}
    writer = LarkWriter(marker_ids(tokenizer.library, markers))
    if guided is None and tool_format is not None and tools.callable:
        lark = calls_grammar(writer, tool_format, reasoning, tools, prompt, budget)
        shape = GuidedDecodingParams(grammar=lark)
    else:
        frame = framed_grammar(writer, tool_format, reasoning, tools, prompt, budget)
        shape = replace(guided or GuidedDecodingParams(grammar=FREE_TEXT), frame=frame)
    return replace(params, guided_decoding=shape), writer.owners


FREE_TEXT = "start: TEXT\nTEXT: /(.|\\n)*/\n"
