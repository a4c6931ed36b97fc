"""An engine's chat templates by name, from its files. As in transformers, "default" serves where no other is asked for.

chat_template.jinja is the default one, additional_chat_templates/NAME.jinja are the others. tokenizer_config.json may
hold templates too: one text, or a list with names. Where there are files, they hold; a list counts beside them if its
default is theirs, for engines built before tensorwright wrote a file for each.
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
    """Name -> Jinja text, the default one first. texts: the engine's files by relative path; root: of the engine, for
    messages. Raises EngineError."""
    found = {name: _decode(root / file, texts[file]) for file in sorted(texts) if (name := _name(file)) is not None}
    listed = _listed(root, tokenizer_config.get("chat_template"))
    if not found or (DEFAULT in found and found[DEFAULT] == listed.get(DEFAULT)):
        found = {**listed, **found}
    return dict(sorted(found.items(), key=lambda item: (item[0] != DEFAULT, item[0])))


def template_file(name: str) -> str:
    """Returns the file of the template `name`, relative to the folder of a checkpoint or an engine."""
    return CHAT_TEMPLATE if name == DEFAULT else f"{CHAT_TEMPLATES}/{name}{CHAT_TEMPLATE_SUFFIX}"


def _name(file: str) -> str | None:
    """Returns the name of the template in a file, None for a file of another kind."""
    if file == CHAT_TEMPLATE:
        return DEFAULT
    path = PurePosixPath(file)
    return path.stem if path.suffix == CHAT_TEMPLATE_SUFFIX and path.parts[:-1] == (CHAT_TEMPLATES,) else None


def _decode(path: Path, data: bytes) -> str:
    try:
        with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") as text:  # with line ends as any text file's
            return text.read()
    except UnicodeDecodeError as error:
        raise EngineError(f"{path}: cannot be read as UTF-8 text ({error}); {REMEDY}") from error


def _listed(root: Path, value: Any) -> dict[str, str]:
    """value: chat_template of tokenizer_config.json."""
    if value is None or value == []:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    named = {str(entry.get("name")): str(entry.get("template")) for entry in entries}
    texts = [entry.get(key) for entry in entries for key in ("name", "template")]
    if not named or len(named) != len(value) or not all(isinstance(text, str) for text in texts):
        raise EngineError(f"{root / TOKENIZER_CONFIG}: chat_template is neither text nor a named list; {REMEDY}")
    return named
