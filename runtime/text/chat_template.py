"""Compiles chat templates, which are Jinja texts, for a sandbox, and finds which variables they read.

A template comes with a checkpoint, so it is not trusted: it runs in Jinja's immutable sandbox and gets nothing but the
messages. It sees what transformers' apply_chat_template shows it. The sandbox does not bound time. MAX_LOOKS bounds the
time of a template that takes more than linear time in the messages.
"""

from __future__ import annotations

import json
import re
import threading
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
"""The name of a template, in an option that may also name a file. Most files of templates end in .jinja."""


MAX_LOOKS = 1_000_000
"""The most entries, attributes and calls of one rendering together. A message takes ten to fifty of them."""
MAX_SPACE = 16
"""The most characters of tojson's indent, and of each of its separators."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled chat template.

    reads: the variables that the template reads.
    knows_developer: whether the template distinguishes the role "developer" from other roles.
    """

    compiled: jinja2.Template
    reads: frozenset[str]
    knows_developer: bool

    def render(self, **variables: Any) -> str:
        """Returns the rendered text. A template is a program and may raise any error; after MAX_LOOKS lookups it raises
        TemplateRuntimeError."""
        _looks.left = MAX_LOOKS
        return self.compiled.render(**variables)


def is_template(text: str) -> bool:
    """Whether the text is Jinja text rather than the name of a template: it contains "{{" or "{%"."""
    return "{{" in text or "{%" in text


@lru_cache(maxsize=16)
def compile_template(text: str) -> ChatTemplate:
    """Compiles Jinja text. Raises jinja2.TemplateError."""
    environment = _environment()
    tree = environment.parse(text)
    reads = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
    developer = any(constant.value == "developer" for constant in tree.find_all(nodes.Const))
    return ChatTemplate(environment.from_string(text), reads, developer)


def check_argument(value: Any) -> None:
    """Raises InvalidOptionError for a value that can be neither Jinja text nor a template's name."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidOptionError(f"chat_template must be Jinja text or the name of a template, got {value!r:.80}")
    if is_template(value):
        check_template(value, "chat_template")


def is_name(place: str, folder: Path = Path()) -> bool:
    """Whether an option names one of the model's templates rather than a file. folder: the base of relative paths."""
    return _NAME.fullmatch(place) is not None and not (folder / place).exists()


def read_argument(place: str, option: str, folder: Path = Path()) -> str:
    """Returns the text of the file that an option names, or the option itself if it is the name of a model's template.

    place: a file, "-" for standard input, or a template's name. folder: the base of relative paths. Raises
    InvalidOptionError for a file that cannot be read or is no template.
    """
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
    """Raises InvalidOptionError unless the text compiles. where: the name that the message gives to the text."""
    try:
        compile_template(text)
    except jinja2.TemplateSyntaxError as error:
        raise InvalidOptionError(f"{where} must be a Jinja template: line {error.lineno}: {error}") from error
    except Exception as error:  # the compiler has limits of its own, which raise for example RecursionError
        raise InvalidOptionError(f"{where} must be a Jinja template: {error!r:.200}") from error


class _GenerationTag(jinja2.ext.Extension):
    """Renders the content of {% generation %}...{% endgeneration %}, which marks the assistant's part for training."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 expects a set in the class)

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Looks(threading.local):
    """The number of lookups that the rendering in this thread has left. Each rendering runs in one thread."""

    left = 0


_looks = _Looks()


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox that counts lookups: Jinja calls it for every entry, attribute and call of a template."""

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._count()
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._count()
        return super().getattr(obj, attribute)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self._count()
        return super().call(context, obj, *args, **kwargs)

    def _count(self) -> None:
        _looks.left -= 1
        if _looks.left < 0:
            raise jinja2.TemplateRuntimeError(
                f"it looks at its variables more than {MAX_LOOKS} times; send fewer or shorter messages"
            )


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(
    value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> str:
    """The filter tojson, with the options that transformers has. Jinja's own filter escapes for HTML.

    It passes no other option to json, because some are functions, which json would call outside the sandbox.
    """
    for name, flag in (("ensure_ascii", ensure_ascii), ("sort_keys", sort_keys)):
        if not isinstance(flag, bool):
            raise TypeError(f"tojson: {name} must be true or false, got {flag!r:.80}")
    width = type(indent) is int and 0 <= indent <= MAX_SPACE
    if not (indent is None or width or _is_space(indent)):
        raise TypeError(f"tojson: indent must be none, 0 to {MAX_SPACE}, or as short a text, got {indent!r:.80}")
    pair = isinstance(separators, (list, tuple)) and len(separators) == 2 and all(map(_is_space, separators))
    if not (separators is None or pair):
        raise TypeError(f"tojson: separators must be none or two short texts, got {separators!r:.80}")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators and tuple(separators),
        sort_keys=sort_keys,
    )


def _is_space(value: Any) -> bool:
    """Whether the value is a text that tojson may use as an indent or a separator."""
    return isinstance(value, str) and len(value) <= MAX_SPACE


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
