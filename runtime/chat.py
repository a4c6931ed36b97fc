"""Chat messages to the text of a prompt, by the model's own Jinja template.

A template comes with a checkpoint, so it is not trusted: it runs in Jinja's immutable sandbox and gets nothing but the
messages. It sees what transformers' apply_chat_template shows it; the text is tokenized without further special
tokens, as there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.engine_dir import EngineDir
from tensorwright.runtime.prompts import TokenizedPrompt

Message = dict[str, Any]


def chat_prompt(
    engine: EngineDir,
    messages: Sequence[Message],
    template: str | None,
    add_generation_prompt: bool,
    variables: dict[str, Any],
) -> TokenizedPrompt:
    """template: instead of the model's. variables: what else the template may look at, such as tools."""
    _check_messages(messages)
    if engine.tokenizer is None:
        raise InvalidRequestError(f"{engine.path} has no tokenizer, so chat is not possible")
    text = template if template is not None else _own_template(engine)
    given = {**_special_tokens(engine), "tools": None, "documents": None, **variables}
    try:
        rendered = _compile(text).render(messages=messages, add_generation_prompt=add_generation_prompt, **given)
    except jinja2.TemplateError as error:
        raise InvalidRequestError(f"the chat template refuses these messages: {error}") from error
    except Exception as error:  # a template is a program, and may fail in any way
        raise InvalidRequestError(f"the chat template fails on these messages: {error!r}") from error
    try:
        ids = engine.tokenizer.encode(rendered, add_special_tokens=False)
    except (TypeError, ValueError) as error:  # a lone surrogate is not text
        raise InvalidRequestError(f"the messages are not valid Unicode text: {error}") from error
    return TokenizedPrompt(rendered, ids)


def is_conversation(messages: Any) -> bool:
    """One list of messages, rather than a list of those."""
    return isinstance(messages, (list, tuple)) and all(isinstance(message, dict) for message in messages)


def _check_messages(messages: Any) -> None:
    if not is_conversation(messages) or not messages:
        raise InvalidRequestError(f"messages must be a list of at least one dict, got {messages!r:.80}")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise InvalidRequestError(f'a message must have a "role" that is a string, got {message!r:.80}')


def _own_template(engine: EngineDir) -> str:
    if "chat_template.jinja" not in engine.files:
        raise InvalidRequestError(f"{engine.path} has no chat template: pass chat_template=, or use generate")
    return engine.file("chat_template.jinja").read_text(encoding="utf-8")


def _special_tokens(engine: EngineDir) -> dict[str, str]:
    """bos_token and its like, which the tokenizer's configuration holds as texts or as objects with one."""
    tokens = {}
    for name, value in engine.read_json("tokenizer_config.json").items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} marks the assistant's part for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads it so)

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=16)
def _compile(text: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment.from_string(text)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Not Jinja's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
