"""The formats in which models think before they answer: text between two tags, or a channel of gpt-oss.

Documented in the chat templates of Qwen3, DeepSeek R1, GLM 4.5 (<think>), Magistral ([THINK]), Seed-OSS
(<seed:think>), Command R7B (<|START_THINKING|>) and Gemma 4 (<|channel>).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorwright.runtime.chat_formats import harmony
from tensorwright.runtime.chat_formats.lark import LarkWriter
from tensorwright.runtime.chat_formats.output import Output
from tensorwright.runtime.chat_formats.text_reader import Steps, TextReader


@dataclass(frozen=True)
class ReasoningFormat:
    """A format of thinking.

    recognises: whether a chat template knows it. markers: as in ToolFormat. begin, close: the tags around the
    thinking; "" if the model's messages have channels instead. label: the word that follows the tag that begins it.
    thought_key: the entry of a message in which a template reads the thinking of an earlier answer.
    """

    name: str
    recognises: Callable[[str], bool]
    markers: tuple[str, ...]
    begin: str = ""
    close: str = ""
    label: str = ""
    thought_key: str = "reasoning_content"

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt ends with the tag that begins the thinking, so that the answer goes on after it."""
        return bool(self.begin) and prompt.rstrip().endswith((self.begin + self.label).rstrip())

    def is_over(self, prompt: str) -> bool:
        """Whether the prompt ends with the tag that ends the thinking, so that there is none."""
        return bool(self.close) and prompt.rstrip().endswith(self.close)

    def before(self, writer: LarkWriter, prompt: str, budget: int | None) -> str:
        """Returns the expression of what comes before the content: the thinking, or nothing where the model need not
        think. Raises InvalidRequestError for a budget that cannot be kept."""
        if not self.begin:
            return f"{harmony.thinking(writer, budget)} {harmony.remarks(writer)} {harmony.final(writer)}"
        if self.is_over(prompt):
            return ""
        gap = writer.terminal(r"/[\n ]{0,4}/")
        thinking = f"{writer.bounded(self.close, budget)} {gap}"
        return (
            thinking if self.is_open(prompt) else f"({writer.marker(self.begin)} {writer.text(self.label)} {thinking})?"
        )


def read_thinking(reader: TextReader, output: Output, form: ReasoningFormat, opened: bool) -> Steps[None]:
    """Reads the thinking at the beginning of an answer, if there is any. opened: whether the prompt began it."""
    if not opened:
        reader.record()
        yield from reader.space()
        if not (yield from reader.accept(form.begin)):
            output.text(reader.recorded())
            return
        reader.forget()
        output.begin_thinking()
        yield from _pass_label(reader, form)
    else:
        output.begin_thinking()
        yield from reader.space()
        if (yield from reader.accept(form.begin)):  # some models repeat the tag
            yield from _pass_label(reader, form)
    while True:
        text, marker = yield from reader.before((form.close,))
        output.reasoning(text)
        if marker:
            reader.take(len(marker))
        if marker or not text:
            break
    output.end_thinking()


def _pass_label(reader: TextReader, form: ReasoningFormat) -> Steps[None]:
    if form.label:
        yield from reader.accept(form.label)


def _tags(name: str, begin: str, close: str, label: str = "") -> ReasoningFormat:
    return ReasoningFormat(name, lambda template: close in template, (begin, close), begin, close, label)


HARMONY = ReasoningFormat("harmony", harmony.HARMONY.recognises, harmony.MARKERS, thought_key="thinking")
THINK = _tags("think", "<think>", "</think>")
BRACKETS = _tags("think_brackets", "[THINK]", "[/THINK]")
SEED_THINK = _tags("seed_think", "<seed:think>", "</seed:think>")
COHERE = _tags("cohere_thinking", "<|START_THINKING|>", "<|END_THINKING|>")
GEMMA = _tags("gemma_channel", "<|channel>", "<channel|>", "thought\n")
