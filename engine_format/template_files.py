"""Reads an engine's chat templates by name from its files. As in transformers, "default" is used if none is named.

chat_template.jinja is the default one, additional_chat_templates/NAME.jinja are the others. tokenizer_config.json may
hold templates too: one text, or a list with names. Template files take precedence. The list is used beside them only if
its default is the same. This serves engines from before Tensorwright wrote a file for each template.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.engine_format.file_names import (
    CHAT_TEMPLATE,
    CHAT_TEMPLATE_SUFFIX,
    CHAT_TEMPLATES,
    TOKENIZER_CONFIG,
)
from tensorwright.errors import EngineError

DEFAULT, TOOL_USE = "default", "tool_use"


def read_templates(root: Path, texts: Mapping[str, bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the Jinja texts by name, the default one first. Raises EngineError.

    root: the engine's folder, for messages. texts: the engine's text files by relative path.
    """
    found = {name: _decode(root / file, texts[file]) for file in sorted(texts) if (name := _name(file)) is not None}
    listed = listed_templates(tokenizer_config.get("chat_template"))
    if listed is None:
        raise EngineError(f"{root / TOKENIZER_CONFIG}: chat_template is neither text nor a named list; {REMEDY}")
    if not found or (DEFAULT in found and found[DEFAULT] == listed.get(DEFAULT)):
        found = {**listed, **found}
    return dict(sorted(found.items(), key=lambda item: (item[0] != DEFAULT, item[0])))


def template_file(name: str) -> str:
    """Returns the file of the template `name`, relative to the folder of a checkpoint or an engine."""
    return CHAT_TEMPLATE if name == DEFAULT else f"{CHAT_TEMPLATES}/{name}{CHAT_TEMPLATE_SUFFIX}"


def _name(file: str) -> str | None:
    """Returns the name of the template in a file, or None for a file of another kind."""
    if file == CHAT_TEMPLATE:
        return DEFAULT
    path = PurePosixPath(file)
    return path.stem if path.suffix == CHAT_TEMPLATE_SUFFIX and path.parts[:-1] == (CHAT_TEMPLATES,) else None


def _decode(path: Path, data: bytes) -> str:
    try:
        with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") as text:  # It converts line ends.
            return text.read()
    except UnicodeDecodeError as error:
        raise EngineError(f"{path}: cannot be read as UTF-8 text ({error}); {REMEDY}") from error


def listed_templates(value: Any) -> dict[str, str] | None:
    """Returns the templates by name that the chat_template of tokenizer_config.json holds: one text, or a list with
    names. None if it is neither."""
    if value is None or value == []:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    named = {str(entry.get("name")): str(entry.get("template")) for entry in entries}
    texts = [entry.get(key) for entry in entries for key in ("name", "template")]
    if not named or len(named) != len(value) or not all(isinstance(text, str) for text in texts):
        return None
    return named
