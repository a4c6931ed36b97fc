"""Counts the tokens that a model spends on thinking, which usage reports beside all tokens of the answer."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.api.chat_plan import ChatPlan
from tensorwright.runtime.requests.completion_state import detokenizer_of
from tensorwright.runtime.text.tokenizer import Tokenizer


class ReasoningCounter:
    """The counter of one completion.

    A token counts if the answer is inside the thinking before or after it. The tag that ends the thinking counts, and
    so does the tag that begins it, if it is one token. The count does not depend on how the tokens are cut into pieces.
    A token costs as much as its text costs in the stream, and nothing once the thinking is over.
    """

    def __init__(self, plan: ChatPlan, tokenizer: Tokenizer):
        self.count = 0
        self._parser = plan.parser()
        self._detokenizer = detokenizer_of(tokenizer, plan.params)

    def push(self, tokens: Sequence[int]) -> None:
        """Adds new tokens. tokens: the newest ids, any number."""
        parser = self._parser
        for token in tokens:
            if parser.past_thinking:
                return
            before = parser.thinking
            parser.push(self._detokenizer.push([token]))
            self.count += before or parser.thinking


def count_reasoning(plan: ChatPlan, tokenizer: Tokenizer, tokens: Sequence[int]) -> int:
    """Returns how many tokens of a whole completion are thinking. tokens: all of its ids."""
    counter = ReasoningCounter(plan, tokenizer)
    counter.push(tokens)
    return counter.count
