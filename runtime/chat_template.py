"""A chat template: Jinja text, compiled for a sandbox, and what it looks at.

A template comes with a checkpoint, so it is not trusted: it runs in Jinja's immutable sandbox and gets nothing but the
messages. It sees what transformers' apply_chat_template shows it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import click
import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes

from tensorwright.errors import InvalidOptionError, reason

_NAME = re.compile(r"[A-Za-z0-9]\w*")
"""Of a template, where a file could be meant too; files of templates mostly end in .jinja."""


@dataclass(frozen=True)
class ChatTemplate:
    """reads: the variables that it looks at. knows_developer: whether it tells the role "developer" from others."""

    compiled: jinja2.Template
    reads: frozenset[str]
    knows_developer: bool


def is_template(text: str) -> bool:
    """Whether it is Jinja text rather than the name of a template: it says something of its own with "{"."""
    return "{{" in text or "{%" in text


@lru_cache(maxsize=16)
def compile_template(text: str) -> ChatTemplate:
    """Raises jinja2.TemplateError."""
    environment = _environment()
    tree = environment.parse(text)
    reads = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
    developer = any(constant.value == "developer" for constant in tree.find_all(nodes.Const))
    return ChatTemplate(environment.from_string(text), reads, developer)


def check_argument(value: Any) -> None:
    """Raises InvalidOptionError for what can be neither Jinja text nor a template's name."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidOptionError(f"chat_template must be Jinja text or the name of a template, got {value!r:.80}")
    if is_template(value):
        check_template(value, "chat_template")


def is_name(place: str, folder: Path = Path()) -> bool:
    """Whether an option names one of the model's templates rather than a file. Relative to the folder."""
    return _NAME.fullmatch(place) is not None and not (folder / place).exists()


def read_argument(place: str, option: str, folder: Path = Path()) -> str:
    """What an option says: the text of a file ("-": of standard input), or the name of one of the model's templates.

    Raises InvalidOptionError for a file that cannot be read or is no template. folder: what a path is relative to."""
    if is_name(place, folder):
        return place
    try:
        path = place if place == "-" else folder / Path(place).expanduser()
        with click.open_file(str(path), encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"{option} must be a readable file of UTF-8 text: {reason(error)}") from error
    if not is_template(text):
        raise InvalidOptionError(f"{option} {place} must hold a Jinja template, and has neither {{{{ nor {{% in it")
    check_template(text, f"{option} {place}")
    return text


def check_template(text: str, where: str) -> None:
    """Raises InvalidOptionError unless it compiles. where: what the message calls it."""
    try:
        compile_template(text)
    except jinja2.TemplateSyntaxError as error:
        raise InvalidOptionError(f"{where} must be a Jinja template: line {error.lineno}: {error}") from error
    except Exception as error:  # the compiler's own limits, such as RecursionError
        raise InvalidOptionError(f"{where} must be a Jinja template: {error!r:.200}") from error


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} marks the assistant's part for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads it so)

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Not Jinja's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
