"""Writes the grammar of a whole answer: thinking first, then free text and calls as the request wants them."""

from __future__ import annotations

from tensorwright.runtime.chat_formats import harmony
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.reasoning import ReasoningFormat
from tensorwright.runtime.chat_formats.tool_format import CallGrammar, ToolFormat
from tensorwright.runtime.chat_formats.tools import Tools


def calls_grammar(
    writer: LarkWriter,
    tool_format: ToolFormat,
    reasoning: ReasoningFormat | None,
    tools: Tools,
    prompt: str,
    budget: int | None,
) -> str:
    """Returns the grammar of an answer that the tools shape. Raises InvalidRequestError for a tool's schema that the
    format cannot follow, and for a budget that cannot be kept.

    prompt: the rendered prompt, which may have begun the thinking. budget: the most tokens of thinking.
    """
    form = tool_format.calls(writer, tools.callable)
    if tool_format is harmony.HARMONY:
        thinking = harmony.thinking(writer, budget)
        if tools.forced:
            return writer.grammar(f"{thinking} {form.one}")
        return writer.grammar(f"{thinking} {harmony.remarks(writer)} ({form.one} | {harmony.final(writer)} TEXT)")
    before = "" if reasoning is None else reasoning.before(writer, prompt, budget)
    body = _forced(writer, form, tools.parallel) if tools.forced else _chosen(writer, form, tools.parallel)
    return writer.grammar(f"{before} ({body})")


def framed_grammar(
    writer: LarkWriter,
    tool_format: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    tools: Tools,
    prompt: str,
    budget: int | None,
) -> str:
    """Returns the grammar of an answer whose content has a form of its own, "@form": the thinking comes before it, and
    calls may come in its place. Raises what `calls_grammar` raises."""
    before = "" if reasoning is None else reasoning.before(writer, prompt, budget)
    if tool_format is None or not tools.callable:
        return writer.grammar(f"{before} @form")
    form = tool_format.calls(writer, tools.callable)
    if tool_format is harmony.HARMONY:
        thinking, remarks = harmony.thinking(writer, budget), harmony.remarks(writer)
        return writer.grammar(f"{thinking} {remarks} ({form.one} | {harmony.final(writer)} @form)")
    gap = writer.terminal(r"/[\n ]{0,4}/") if form.frames else ""
    framed = "".join(f" | {writer.marker(begin)} {gap} @form {gap} {writer.marker(end)}" for begin, end in form.frames)
    return writer.grammar(f"{before} ({_forced(writer, form, tools.parallel)} | @form{framed})")


def _calls(form: CallGrammar, parallel: bool) -> str:
    """Returns the expression of calls without the marker that begins them."""
    more = f"({form.separator} {form.one})*" if parallel and form.separator else ""
    return f"{form.open} {form.one} {more} {form.close}"


def _forced(writer: LarkWriter, form: CallGrammar, parallel: bool) -> str:
    begin = writer.marker(form.begin) if form.begin else ""
    return f"{begin} {_calls(form, parallel)}"


def _chosen(writer: LarkWriter, form: CallGrammar, parallel: bool) -> str:
    """Returns the expression of free text in which calls may stand, and the calls follow their grammar."""
    calls = _calls(form, parallel)
    if not form.begin:
        return f"{calls} | {writer.terminal(f'/{form.other}/')}"
    head = writer.until(form.begin)
    framed = "".join(f" | {writer.marker(begin)} {writer.until(end)}" for begin, end in form.frames)
    if parallel:
        return f"({head} {calls})* TEXT{framed}"
    return f"({head} {calls})? {writer.without(form.begin)}{framed}"
