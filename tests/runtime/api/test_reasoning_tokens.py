"""The count of thinking's tokens, in every form of thinking and however the tokens come."""

from __future__ import annotations

import pytest

from support.fake_runtime import byte_tokenizer
from tensorwright.runtime.api.chat_plan import ChatPlan
from tensorwright.runtime.api.reasoning_tokens import ReasoningCounter, count_reasoning
from tensorwright.runtime.chat_formats import harmony, reasoning
from tensorwright.runtime.chat_formats.reasoning import ReasoningFormat
from tensorwright.runtime.chat_formats.tools import Tools
from tensorwright.runtime.requests.prompts import RenderedPrompt
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.text.tokenizer import Tokenizer

ANALYSIS = "<|channel|>analysis<|message|>"
NEXT = "<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CASES: list[tuple[ReasoningFormat | None, str, str, int]] = [
    # the form, the prompt, the answer, and the bytes that count: of an opening tag the last, of a closing one all
    (reasoning.THINK, "<think>\n", "ab</think>cd", len("ab</think>")),
    (reasoning.THINK, "<think>\n", "</think>cd", len("</think>")),
    (reasoning.THINK, "<think>\n", "a < é", len("a < é".encode())),
    (reasoning.THINK, "", "<think>ab</think>\ncd", len(">ab</think>")),
    (reasoning.THINK, "", "cd <think>ab</think>", 0),
    (reasoning.BRACKETS, "", "[THINK]ab[/THINK]cd", len("]ab[/THINK]")),
    (reasoning.HARMONY, "", f"{ANALYSIS}ab{NEXT}{FINAL}cd", len(">ab<|end|>")),
    (reasoning.HARMONY, "", f"{ANALYSIS}ab{NEXT}{ANALYSIS}ab{NEXT}{FINAL}cd", 2 * len(">ab<|end|>")),
    (None, "<think>\n", "ab</think>cd", 0),
]


@pytest.mark.parametrize(("form", "prompt", "answer", "wanted"), CASES)
def test_what_counts_does_not_depend_on_the_cuts(
    form: ReasoningFormat | None, prompt: str, answer: str, wanted: int
) -> None:
    tool_format = harmony.HARMONY if form is reasoning.HARMONY else None
    plan = ChatPlan(RenderedPrompt(prompt), SamplingParams(), tool_format, form, Tools())
    library = byte_tokenizer()
    tokenizer, ids = Tokenizer(library), library.encode(answer).ids
    assert count_reasoning(plan, tokenizer, ids) == wanted
    for size in (1, 3, 5):
        counter = ReasoningCounter(plan, tokenizer)
        for start in range(0, len(ids), size):
            counter.push(ids[start : start + size])
        assert counter.count == wanted
