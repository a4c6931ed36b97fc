"""Turns chat messages into the text of a prompt, with the model's own Jinja template.

The text is tokenized without further special tokens, as transformers' apply_chat_template does. No input of a caller is
dropped silently: an input that the template does not read is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jinja2

from tensorwright.engine_format.template_files import DEFAULT, TOOL_USE
from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.runtime.api.chat_history import for_template
from tensorwright.runtime.base.parameter_checks import clipped, shown
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.prompts import RenderedPrompt
from tensorwright.runtime.text.chat_template import ChatTemplate, compile_template, is_template
from tensorwright.runtime.text.special_tokens import named_tokens

Message = dict[str, Any]
DEVELOPER, SYSTEM = "developer", "system"
MUST_BE_READ = ("tools", "documents")
"""The variables that carry information for the model. Other variables are switches, which a template may lack."""
RESULTS = ("tool", "function")
"""The roles of a tool call's result. The name of such a message repeats the name of the call, so a template may leave
it out."""


def chat_prompt(
    engine: EngineDir,
    messages: Sequence[Message],
    template: str | None,
    add_generation_prompt: bool,
    variables: dict[str, Any],
    thought_key: str = "reasoning_content",
) -> RenderedPrompt:
    """Renders the prompt of a conversation. Raises InvalidRequestError.

    template: Jinja text that replaces the model's template, or the name of one of the model's templates; None chooses
    among them. variables: further variables for the template, such as tools. thought_key: the entry of a message in
    which the template reads the thinking of an earlier answer.
    """
    check_chat(engine, messages)
    messages = for_template(messages, thought_key)
    text = choose_template(engine, template, variables.get("tools"))
    given = {**named_tokens(*engine.tokenizer_settings), "tools": None, "documents": None, **variables}
    rendered = _render(text, messages, {"add_generation_prompt": add_generation_prompt}, given)
    try:
        rendered.encode()
    except UnicodeEncodeError as error:  # the text has a lone surrogate
        raise InvalidRequestError(f"the messages are not valid Unicode text: {error}") from error
    return RenderedPrompt(rendered)


def is_conversation(messages: Any) -> bool:
    """Whether the argument is one list of messages, rather than a list of such lists."""
    return isinstance(messages, (list, tuple)) and all(isinstance(message, dict) for message in messages)


def choose_template(engine: EngineDir, asked: str | None, tools: Any) -> str:
    """Returns the text of the template that the caller asks for, by name or as text, or that transformers would choose.

    Raises InvalidRequestError if there is no such template.
    """
    named = engine.chat_templates
    if asked is not None:
        if not is_template(asked) and asked not in named:
            raise InvalidRequestError(
                f"chat_template {asked!r:.80} is neither Jinja nor the name of {_listing(engine)}"
            )
        return named.get(asked, asked)
    if tools is not None and TOOL_USE in named:
        return named[TOOL_USE]
    if DEFAULT in named:
        return named[DEFAULT]
    if named:
        raise InvalidRequestError(f"chat_template must name one of {', '.join(named)}: none of them is the default one")
    raise InvalidRequestError("the engine has no chat template: pass chat_template=, or use generate")


def check_choice(engine: EngineDir, asked: str) -> None:
    """Raises InvalidOptionError unless chat_template is Jinja text or the name of a template of this engine."""
    if not is_template(asked) and asked not in engine.chat_templates:
        raise InvalidOptionError(
            f"chat_template must be Jinja text (of a command: a file of it) or the name of {_listing(engine)} of "
            f"{engine.path}, got {asked!r:.80}"
        )


def _listing(engine: EngineDir) -> str:
    names = ", ".join(engine.chat_templates)
    return f"one of the templates ({names})" if names else "a template (there is none)"


def check_chat(engine: EngineDir, messages: Any) -> None:
    """Raises InvalidRequestError for what is no conversation, and for an engine that can have none."""
    if not is_conversation(messages) or not messages:
        raise InvalidRequestError(f"messages must be a list of at least one dict, got {shown(messages)}")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise InvalidRequestError(f'a message must have a "role" that is a string, got {shown(message)}')
    if engine.tokenizer is None:
        raise InvalidRequestError("the engine has no tokenizer, so chat is not possible")


def _render(text: str, messages: Sequence[Message], options: dict[str, Any], given: dict[str, Any]) -> str:
    """Returns the prompt. Raises InvalidRequestError if the template refuses, fails, or does not read its input."""
    with _template_errors():
        template = compile_template(text)
    _check_variables(template, given)
    watched = [_Watched(_in_known_role(message, template)) for message in messages]
    with _template_errors():
        rendered = template.render(messages=watched, **options, **given)
    _check_seen(messages, watched)
    return rendered


@contextmanager
def _template_errors() -> Iterator[None]:
    """Turns every error inside the context into an InvalidRequestError. A template is a program and may raise any
    error."""
    try:
        yield
    except jinja2.TemplateError as error:
        raise InvalidRequestError(f"the chat template refuses these messages: {clipped(str(error))}") from error
    except Exception as error:
        raise InvalidRequestError(f"the chat template fails on these messages: {clipped(repr(error))}") from error


def _check_variables(template: ChatTemplate, given: dict[str, Any]) -> None:
    for name in MUST_BE_READ:
        if given.get(name) and name not in template.reads:
            raise InvalidRequestError(
                f"the chat template never reads {name}, so the model would not know of them: leave them out, or take a "
                "template that does"
            )


def _in_known_role(message: Message, template: ChatTemplate) -> Message:
    """Returns the message with the role "system" instead of "developer" if the template does not know "developer".

    "developer" is a newer word for "system", and all templates that take instructions know "system".
    """
    if message["role"] != DEVELOPER or template.knows_developer:
        return message
    return {**message, "role": SYSTEM}


def _check_seen(messages: Sequence[Message], watched: Sequence[_Watched]) -> None:
    """Raises InvalidRequestError for a name or an instruction that the template did not read, because it would be
    lost."""
    for number, (message, seen) in enumerate(zip(messages, watched, strict=True)):
        if message.get("name") is not None and message["role"] not in RESULTS and not _was_read(seen, "name"):
            raise InvalidRequestError(
                f"messages[{number}] has a name, {message['name']!r:.80}, which the chat template does not read: "
                "leave it out, or say it in the content"
            )
        for key in MUST_BE_SEEN.get(message["role"], ()):
            if message.get(key) and not _was_read(seen, key):
                raise InvalidRequestError(
                    f"messages[{number}] has the role {message['role']!r} and {key}, which the chat template does not "
                    "read, so the model would not know of them: take a template that does"
                )
        if message["role"] == DEVELOPER and not _was_read(seen, "content"):
            raise InvalidRequestError(
                f"messages[{number}] has the role {DEVELOPER!r}, which the chat template does not take there, nor does "
                f"it take {SYSTEM!r}: put the message first, or make it part of what the user says"
            )


MUST_BE_SEEN = {"assistant": ("tool_calls",), "tool": ("content",)}
"""The entries of messages, by role, without which the model would not know what its tools did."""


class _Watched(dict[str, Any]):
    """A message that records which of its entries a template reads.

    Its own attributes begin with an underscore, so that no template sees one in place of an entry: Jinja tries
    attributes before entries.
    """

    def __init__(self, message: Message):
        super().__init__(message)
        self._plain = dict(message)  # a copy whose entries can be read without being recorded
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return self._plain[key]

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        return self._plain.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> Any:
        return self._all_read().keys()

    def values(self) -> Any:
        return self._all_read().values()

    def items(self) -> Any:
        return self._all_read().items()

    def _all_read(self) -> dict[str, Any]:
        self._read.update(self._plain)
        return self._plain


def _was_read(message: _Watched, key: str) -> bool:
    return key in message._read
