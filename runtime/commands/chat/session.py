"""Holds a conversation with a model in the terminal: reads, answers, and obeys lines that begin with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click

from tensorwright.errors import InvalidRequestError, PromptTooLongError, TensorwrightError, reason
from tensorwright.runtime.api.chat_plan import EFFORTS, ChatPlan, ChatSettings, ChatWish, plan_chat
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.commands.chat.conversation import Conversation
from tensorwright.runtime.commands.chat.printer import Printer, without_controls
from tensorwright.runtime.commands.chat.reader import QUOTES, Reader
from tensorwright.runtime.commands.chat.settings import Settings
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_news import RequestNews


class Leave(Exception):
    """Ends the session."""


@dataclass(frozen=True)
class Command:
    """What a slash and a name do. words: what may follow the name, for the help."""

    run: Callable[[Session, str], None]
    words: str
    help: str


class Session:
    """One user's conversation with one model. tells: whether notes and what the model thinks are shown; on a terminal
    they are. effort: how much the model thinks, one of chat_plan.EFFORTS; None leaves it to the model."""

    COMMANDS: ClassVar[dict[str, Command]] = {}

    def __init__(
        self, llm: LLM, reader: Reader, settings: Settings, conversation: Conversation, tells: bool,
        effort: str | None = None,
    ):  # fmt: skip
        self._llm, self._reader, self._settings, self._tells = llm, reader, settings, tells
        self._conversation = conversation
        self._chat = ChatSettings(llm.chat_template, llm.tool_parser, llm.reasoning_parser)
        self._wish = ChatWish(effort=effort)
        self._last: RequestOutput | None = None

    def run(self) -> None:
        """Talks until the input ends. Errors of single lines are told, and the session goes on; where the input is no
        terminal, they are raised."""
        if self._tells:
            self._note(f"{self._llm.engine.path.name}: /help shows what you can say, Ctrl-D ends")
        while True:
            try:
                text = self._reader.read()
                if text is None:
                    return
                self._take(text)
            except Leave:
                return
            except KeyboardInterrupt:
                if not self._tells:
                    raise
                click.echo()
                self._note("Ctrl-D or /bye ends the chat")
            except (TensorwrightError, OSError) as error:
                if not self._tells:
                    raise
                self._note(f"error: {error if isinstance(error, TensorwrightError) else reason(error)}")

    def _take(self, text: str) -> None:
        words = text.strip()
        if words.startswith("//"):
            self.ask(words[1:])
        elif words.startswith("/"):
            name, _, rest = words[1:].partition(" ")
            command = self.COMMANDS.get(name)
            if command is None:
                raise InvalidRequestError(f"there is no /{name}; /help shows all, and // begins a text with a slash")
            command.run(self, rest.strip())
        elif words:
            self.ask(text)

    def ask(self, text: str) -> None:
        """Asks, prints the answer as it comes, and keeps both. A question without any answer is taken back, and what
        was left out to make room for it is sent again."""
        forgotten = self._conversation.forgotten
        self._conversation.ask(text)
        try:
            answer = self._answer()
        except BaseException:
            self._conversation.take_back()
            self._conversation.forgotten = forgotten
            raise
        self._conversation.answer(answer)

    def _answer(self) -> str:
        plan, handle = self._start()
        parser, printer = plan.parser(), Printer(self._tells)
        try:
            for news in RequestNews(handle):
                printer.show(parser.push(news.outputs[0].text))
        except KeyboardInterrupt:
            handle.abort()
            click.echo()
            self._note("stopped")
        printer.show(parser.finish())
        click.echo()
        self._last = handle.result()
        if self._last.outputs[0].finish_reason == "length":
            self._note("the answer ends here: the context is full, or max_tokens is reached")
        return printer.answer

    def _start(self) -> tuple[ChatPlan, RequestHandle]:
        """Starts the answer. The oldest messages are left out where the context has no room for all."""
        forgotten = self._conversation.forgotten
        while True:
            messages = self._conversation.to_send()
            try:
                plan = plan_chat(self._llm.engine, self._chat, messages, self._wish, self._settings.params)
                handle = self._llm.generate_async(plan.prompt, plan.params)
            except PromptTooLongError:
                if not self._conversation.forget_oldest():
                    raise
                continue
            if self._conversation.forgotten > forgotten:
                self._note(f"the context is full: the first {self._conversation.forgotten} messages are sent no more")
            return plan, handle

    def _note(self, text: str) -> None:
        click.secho(f"({without_controls(text)})", err=True, dim=sys.stderr.isatty())

    def again(self, words: str) -> None:
        question = self._conversation.take_back()
        if question is None:
            raise InvalidRequestError("nothing was asked yet")
        self.ask(question)

    def take_back(self, words: str) -> None:
        if self._conversation.take_back() is None:
            raise InvalidRequestError("nothing was asked yet")

    def system(self, words: str) -> None:
        """Sets what the system says. Without words it is shown, and "none" removes it."""
        if words:
            self._conversation.system = None if words == "none" else words.strip('"')
        else:
            click.echo(without_controls(self._conversation.system or "none"))

    def clear(self, words: str) -> None:
        self._conversation.clear()

    def change(self, words: str) -> None:
        name, _, value = words.partition(" ")
        if not value:
            click.echo("\n".join(self._settings.shown()))
        else:
            self._settings.change(name, value.strip())

    def think(self, words: str) -> None:
        """Sets how much the model thinks. Without words it is shown."""
        if words:
            self._wish = ChatWish(effort=None if words == "default" else words)
        else:
            click.echo(self._wish.effort or "default")

    def save(self, words: str) -> None:
        if not words:
            raise InvalidRequestError("/save needs the name of a file")
        self._conversation.save(Path(words).expanduser())

    def load(self, words: str) -> None:
        if not words:
            raise InvalidRequestError("/load needs the name of a file")
        self._conversation = Conversation.load(Path(words).expanduser())
        self._note(f"{len(self._conversation.messages)} messages")

    def history(self, words: str) -> None:
        for message in self._conversation.messages:
            click.echo(without_controls(f"{message['role']}: {message['content']}"))

    def stats(self, words: str) -> None:
        if self._last is None:
            raise InvalidRequestError("nothing was answered yet")
        metrics, prompt = self._last.metrics, len(self._last.prompt_token_ids)
        parts = [f"{prompt} tokens in the prompt, {metrics.cached_tokens} of them known from before"]
        parts.append(f"{len(self._last.outputs[0].token_ids)} in the answer")
        if metrics.time_to_first_token is not None:
            parts.append(f"the first after {metrics.time_to_first_token * 1e3:.0f} ms")
        if metrics.time_per_output_token:
            parts.append(f"then {1 / metrics.time_per_output_token:.1f} a second")
        click.echo(", ".join(parts))

    def help(self, words: str) -> None:
        rows = [(f"/{name} {command.words}".rstrip(), command.help) for name, command in self.COMMANDS.items()]
        rows.append((QUOTES, "begins and ends a text of several lines"))
        rows.append(("Ctrl-C", "stops an answer; what came of it is kept"))
        for left, right in rows:
            click.echo(f"  {left:22} {right}")

    def leave(self, words: str) -> None:
        raise Leave


Session.COMMANDS.update(
    {
        "help": Command(Session.help, "", "shows this"),
        "system": Command(Session.system, "[TEXT|none]", "shows or sets what the system says before the conversation"),
        "regen": Command(Session.again, "", "answers the last question once more"),
        "undo": Command(Session.take_back, "", "takes the last question and its answer back"),
        "clear": Command(Session.clear, "", "begins a new conversation"),
        "set": Command(Session.change, "[NAME VALUE]", "shows how answers are drawn, or changes it"),
        "think": Command(
            Session.think, "[EFFORT]", f"shows or sets how much it thinks: {', '.join(EFFORTS)} or default"
        ),
        "save": Command(Session.save, "FILE", "writes the conversation as JSON"),
        "load": Command(Session.load, "FILE", "goes on with a conversation that was saved"),
        "history": Command(Session.history, "", "shows the conversation"),
        "stats": Command(Session.stats, "", "shows the tokens and the speed of the last answer"),
        "bye": Command(Session.leave, "", "ends the chat, as Ctrl-D does"),
    }
)
