"""What atheris feeds with bytes, and tests with the corpus that it found: each takes any bytes and lets nothing out but
a bug. Typed errors are answers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic_core import from_json

from support.fake_runtime import byte_tokenizer
from tensorwright import SamplingParams
from tensorwright.errors import CheckpointError, InvalidOptionError, InvalidRequestError
from tensorwright.models.safetensors_file import SafetensorsFile
from tensorwright.runtime import request_bounds as bounds
from tensorwright.runtime.chat import chat_prompt
from tensorwright.runtime.guided.params import GuidedDecodingParams
from tensorwright.runtime.guided.translation import RULE
from tensorwright.runtime.server.body_route import read_body
from tensorwright.runtime.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.server.completion_request import CompletionRequest
from tensorwright.runtime.server.json_shape import check_shape
from tensorwright.runtime.server.sampling import chat_params, completion_params
from tensorwright.runtime.server.tokenization import DetokenizeRequest, TokenizeRequest

REFUSED = (InvalidRequestError, InvalidOptionError, RequestValidationError)
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% if message.name %} by {{ message.name }}"
    "{% endif %}{% endfor %}{{ variables | tojson(indent=2) }}"
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
)
LONGEST_MESSAGE = 20_000  # characters of an error: what was asked for is shown in part


def safetensors_header(data: bytes) -> None:
    """data: the header's JSON. With half of it again as tensors behind."""
    path = _folder() / "weights.safetensors"
    path.write_bytes(len(data).to_bytes(8, "little") + data + data[: len(data) // 2])
    with suppress(CheckpointError):
        file = SafetensorsFile(path)
        for name in file.tensors:
            tensor = file.read(name)
            assert tensor.data.size <= len(data)


def sampling_params(data: bytes) -> None:
    """data: parameters as JSON."""
    fields = _json(data)
    if isinstance(fields, dict):
        with _refused():
            SamplingParams(**fields)


def grammar(data: bytes) -> None:
    """data: parameters of guided decoding as JSON, or else one text for each that takes a text."""
    fields = _json(data)
    text = data.decode("utf-8", "replace")
    for each in [fields] if isinstance(fields, dict) else [{"regex": text}, {"grammar": text}, {"json": text}]:
        with _refused():
            params = GuidedDecodingParams(**each)
            assert len(params.text) <= bounds.SCHEMA_LENGTH
            RULE.search(params.text)


def body(data: bytes) -> None:
    """data: the body of a request, read as each of them."""
    for model, params in MODELS.items():
        with _refused():
            request = read_body(data, model)
            if params is not None:
                params(request, {})


def shape(data: bytes) -> None:
    """data: a JSON text. What is counted is what a parser makes of it, wherever the text is cut into pieces."""
    try:
        value = from_json(data)
    except ValueError:
        with _refused():
            check_shape(data)
        return
    depth, parts, values = _counted(value, 1)
    fits = depth <= bounds.BODY_DEPTH and parts <= bounds.BODY_PARTS and values <= bounds.BODY_VALUES
    try:
        check_shape(data)
    except InvalidRequestError:
        assert not fits or b":" in data  # a key that stands twice is made once
    else:
        assert fits


def chat(data: bytes) -> None:
    """data: messages and the template's variables as JSON."""
    asked = _json(data)
    if isinstance(asked, dict):
        engine: Any = SimpleNamespace(
            tokenizer=byte_tokenizer(), chat_templates={"default": TEMPLATE}, tokenizer_settings=({}, {})
        )
        variables = asked.get("variables")
        with _refused():
            chat_prompt(engine, asked.get("messages"), None, True, variables if isinstance(variables, dict) else {})


MODELS: dict[Any, Callable[[Any, Any], Any] | None] = {
    CompletionRequest: completion_params,
    ChatCompletionRequest: chat_params,
    TokenizeRequest: None,
    DetokenizeRequest: None,
}
TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (safetensors_header, sampling_params, grammar, body, shape, chat)
}


class _refused:
    """Lets typed errors pass, whose words are not endless."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not isinstance(error, REFUSED):
            return False
        assert len(str(error)) < LONGEST_MESSAGE
        return True


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _counted(value: Any, depth: int) -> tuple[int, int, int]:
    """Of a parsed JSON: its depth, its lists, objects and texts, and the commas between its values."""
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, (list, dict)):
        return 0, 0, 0
    below = [_counted(each, depth + 1) for each in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    deepest = 1 + max((each[0] for each in below), default=0)
    return deepest, 1 + keys + sum(each[1] for each in below), max(0, len(value) - 1) + sum(each[2] for each in below)


@lru_cache(maxsize=1)
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tensorwright-fuzz-"))
