"""Writes the answer to a chat, at once or as a stream of events: its text, its thinking, and its calls of tools."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Any

from tensorwright.runtime.api.chat_plan import ChatPlan
from tensorwright.runtime.api.reasoning_tokens import ReasoningCounter, count_reasoning
from tensorwright.runtime.chat_formats.chat_parser import ChatParser
from tensorwright.runtime.chat_formats.events import (
    AssistantMessage,
    End,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallBegin,
)
from tensorwright.runtime.requests.outputs import CompletionOutput, RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.serving.server.logprobs import chat_logprobs
from tensorwright.runtime.serving.server.requests import count_usage, follow_all
from tensorwright.runtime.serving.server.responses import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatUsage,
    MessageToolCall,
    ReasoningTokens,
    ToolCallDelta,
)
from tensorwright.runtime.serving.server.text_engine import TextEngine
from tensorwright.runtime.text.tokenizer import Tokenizer


class ChatAnswer:
    """The answer to one request, in one piece or as a stream of events."""

    def __init__(self, engine: TextEngine, body: ChatCompletionRequest, plan: ChatPlan):
        self._engine = engine
        self._body = body
        self._plan = plan
        options = body.stream_options
        self._counts = options is not None and bool(options.include_usage)
        self._streams: dict[int, _ChoiceStream] = {}  # by the index of the choice
        self.framed = False
        self._head: dict[str, Any] = {
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": engine.name,
            "system_fingerprint": engine.fingerprint,
        }

    def whole(self, output: RequestOutput) -> ChatCompletion:
        choices = [self._choice(choice) for choice in output.outputs]
        return ChatCompletion(**self._head, choices=choices, usage=self._usage([output], self._thought(output)))

    def _thought(self, output: RequestOutput) -> int:
        """Returns the number of tokens that all choices of a whole output spent on thinking."""
        return sum(count_reasoning(self._plan, self._engine.tokenizer, choice.token_ids) for choice in output.outputs)

    @staticmethod
    def _usage(outputs: Sequence[RequestOutput], thought: int) -> ChatUsage:
        counts = dict(count_usage(outputs))
        return ChatUsage(**counts, completion_tokens_details=ReasoningTokens(reasoning_tokens=thought))

    def _choice(self, choice: CompletionOutput) -> ChatChoice:
        message = self._plan.message(choice.text)
        return ChatChoice(
            index=choice.index,
            message=self._message(message),
            logprobs=self._logprobs(choice),
            finish_reason=reason_of(choice, len(message.tool_calls)),
            stop_reason=choice.stop_reason,
        )

    def _message(self, message: AssistantMessage) -> ChatMessage:
        calls = [
            MessageToolCall(
                id=self._plan.call_id(call.name, index),
                function=CalledFunction(name=call.name, arguments=call.arguments),
            )
            for index, call in enumerate(message.tool_calls)
        ]
        return ChatMessage(
            content=message.content,
            reasoning_content=message.reasoning,
            reasoning=message.reasoning,
            tool_calls=calls or None,
        )

    async def events(self, handles: Sequence[RequestHandle]) -> AsyncIterator[str]:
        nothing_yet: dict[str, Any] = {"usage": None} if self._counts else {}
        async for _, output in follow_all(handles):  # `output` holds only what is new.
            for choice in output.outputs:
                for piece in self._pieces(choice):
                    chunk = ChatChunk(**self._head, choices=[piece], **nothing_yet)
                    yield chunk.model_dump_json(exclude_unset=True)
        if self._counts:
            thought = sum(stream.thought for stream in self._streams.values())
            usage = self._usage([handle.so_far() for handle in handles], thought)
            yield ChatChunk(**self._head, choices=[], usage=usage).model_dump_json(exclude_unset=True)

    def _pieces(self, choice: CompletionOutput) -> list[ChatChunkChoice]:
        """Returns the chunks for the new part of a choice. The role comes before the first text, and the finish reason
        after the last. The logprobs of the new tokens come with the first chunk of what they became."""
        stream = self._streams.get(choice.index)
        if (stream is not None and stream.ended) or not (choice.token_ids or choice.finish_reason):
            return []
        pieces = []
        if stream is None:
            stream = self._streams[choice.index] = _ChoiceStream(self._plan, self._engine.tokenizer, self._counts)
            pieces.append(self._piece(choice, ChatDelta(role="assistant", content="")))
        deltas = stream.push(choice)
        logprobs = self._logprobs(choice)
        if logprobs is not None and logprobs.content and not deltas:
            deltas = [ChatDelta(content="")]
        for number, delta in enumerate(deltas):
            pieces.append(self._piece(choice, delta, logprobs if number == 0 else None))
        if stream.ended:
            last = {"finish_reason": reason_of(choice, stream.calls), "stop_reason": choice.stop_reason}
            pieces.append(self._piece(choice, ChatDelta(), None, **last))
        return pieces

    def _piece(
        self, choice: CompletionOutput, delta: ChatDelta, logprobs: ChatLogprobs | None = None, **end: Any
    ) -> ChatChunkChoice:
        end = end or {"finish_reason": None}
        return ChatChunkChoice(index=choice.index, delta=delta, logprobs=logprobs, **end)

    def _logprobs(self, choice: CompletionOutput) -> ChatLogprobs | None:
        """Returns the logprobs of a choice's tokens, or None if the request did not ask for them."""
        if choice.logprobs is None:
            return None
        return chat_logprobs(self._engine, choice.token_ids, choice.logprobs, self._body.top_logprobs or 0)


def reason_of(choice: CompletionOutput, calls: int) -> str | None:
    """Returns the reason of a choice's end. An answer that ends by itself and has calls waits for their results."""
    return "tool_calls" if calls and choice.finish_reason == "stop" else choice.finish_reason


class _ChoiceStream:
    """The stream of one choice. ended: whether its last part came. calls: how many calls it had."""

    def __init__(self, plan: ChatPlan, tokenizer: Tokenizer, counts: bool):
        self.ended = False
        self.calls = 0
        self._plan = plan
        self._parser: ChatParser = plan.parser()
        self._counter = ReasoningCounter(plan, tokenizer) if counts else None

    @property
    def thought(self) -> int:
        """How many tokens were thinking; 0 if nobody counts."""
        return 0 if self._counter is None else self._counter.count

    def push(self, choice: CompletionOutput) -> list[ChatDelta]:
        """Returns the deltas of the new part of a choice. Pieces of the same text become one delta."""
        if self._counter is not None:
            self._counter.push(choice.token_ids)
        events = self._parser.push(choice.text)
        if choice.finish_reason is not None:
            self.ended = True
            events += self._parser.finish()
        grouped = groupby(events, key=lambda event: (type(event), getattr(event, "index", 0)))
        return [delta for _, group in grouped for delta in self._delta(list(group))]

    def _delta(self, events: list[Event]) -> list[ChatDelta]:
        """Returns the delta of events of one kind, or none."""
        first = events[0]
        if isinstance(first, End):
            self.calls = first.calls
            return []
        if isinstance(first, ToolCallBegin):
            function = CalledFunction(name=first.name, arguments="")
            call_id = self._plan.call_id(first.name, first.index)
            call = ToolCallDelta(index=first.index, id=call_id, type="function", function=function)
            return [ChatDelta(tool_calls=[call])]
        text = "".join(getattr(event, "text", "") for event in events)
        if isinstance(first, ToolArgumentsDelta):
            part = ToolCallDelta(index=first.index, function=CalledFunction(arguments=text))
            return [ChatDelta(tool_calls=[part])]
        if isinstance(first, ReasoningDelta):
            return [ChatDelta(reasoning_content=text, reasoning=text)]
        assert isinstance(first, TextDelta)
        return [ChatDelta(content=text)]
