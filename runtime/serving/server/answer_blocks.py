"""Cuts the events of an answer into blocks: thinking, text, and calls, in the order in which the model wrote them.

The Responses API shows each block as an item, Anthropic's API as a content block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tensorwright.runtime.api.chat_plan import ChatPlan
from tensorwright.runtime.api.reasoning_tokens import ReasoningCounter
from tensorwright.runtime.chat_formats.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallBegin,
)
from tensorwright.runtime.requests.outputs import CompletionOutput
from tensorwright.runtime.text.tokenizer import Tokenizer

Kind = Literal["thinking", "text", "call"]


@dataclass
class Block:
    """One part of an answer. index: its number in the answer, from 0. name: of a call, the tool's. parts: its text so
    far, or the JSON text of the call's arguments, in pieces. call: the number of a call among the calls, from 0."""

    kind: Kind
    index: int
    name: str = ""
    parts: list[str] = field(default_factory=list)
    call: int = 0

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(frozen=True)
class Opened:
    """A block begins."""

    block: Block


@dataclass(frozen=True)
class Grown:
    """A block has new text."""

    block: Block
    text: str


@dataclass(frozen=True)
class Closed:
    """A block is complete, or the answer ends with it."""

    block: Block


Step = Opened | Grown | Closed


class AnswerBlocks:
    """The blocks of one completion. One block is open at a time, the last one. thought: how many tokens were thinking.
    calls: how many of the blocks are calls."""

    def __init__(self, plan: ChatPlan, tokenizer: Tokenizer):
        self.blocks: list[Block] = []
        self._parser = plan.parser()
        self._counter = ReasoningCounter(plan, tokenizer)

    @property
    def thought(self) -> int:
        return self._counter.count

    @property
    def calls(self) -> int:
        return sum(block.kind == "call" for block in self.blocks)

    def push(self, choice: CompletionOutput) -> list[Step]:
        """Returns what the new part of a completion changes. With the completion's end the last block closes. A
        completion that has ended must not be pushed again."""
        self._counter.push(choice.token_ids)
        events = self._parser.push(choice.text)
        if choice.finish_reason is not None:
            events += self._parser.finish()
        steps = [step for event in events for step in self._steps(event)]
        if choice.finish_reason is not None and self.blocks:
            steps.append(Closed(self.blocks[-1]))
        return list(_joined(steps))

    def _steps(self, event: Event) -> Sequence[Step]:
        if isinstance(event, ToolCallBegin):
            return self._open("call", event.name)
        if isinstance(event, ToolArgumentsDelta):
            return [self._grow(event.text)]
        if isinstance(event, TextDelta | ReasoningDelta):
            kind: Kind = "text" if isinstance(event, TextDelta) else "thinking"
            same = bool(self.blocks) and self.blocks[-1].kind == kind
            return [*([] if same else self._open(kind)), self._grow(event.text)]
        return []

    def _open(self, kind: Kind, name: str = "") -> list[Step]:
        closed: list[Step] = [Closed(self.blocks[-1])] if self.blocks else []
        self.blocks.append(Block(kind, len(self.blocks), name, call=self.calls))
        return [*closed, Opened(self.blocks[-1])]

    def _grow(self, text: str) -> Step:
        self.blocks[-1].parts.append(text)
        return Grown(self.blocks[-1], text)


def _joined(steps: Iterable[Step]) -> Iterable[Step]:
    """Yields the steps, with neighbours that grow the same block as one step."""
    texts: list[str] = []
    growing: Block | None = None
    for step in steps:
        if isinstance(step, Grown):
            growing = step.block
            texts.append(step.text)
            continue
        if growing is not None:
            yield Grown(growing, "".join(texts))
            growing, texts = None, []
        yield step
    if growing is not None:
        yield Grown(growing, "".join(texts))
