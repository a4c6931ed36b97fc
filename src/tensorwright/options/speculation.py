"""Declares what a user can say of speculation: the proposer of tokens, and what it takes.

Examples: "none"; "ngram"; "ngram,tokens=4"; {"method": "ngram", "tokens": "auto", "min_match": 3};
"draft,model=out/draft"; {"method": "draft", "model": "out/draft", "kv_cache_memory": "256MiB"}.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.number_checks import is_int
from tensorwright.sizes import parse_size

MAX_TOKENS = 16
"""The most tokens that are proposed for a sequence in one step. runtime/core has the same number."""
MAX_ROWS = 4096
AUTO = "auto"
METHODS: dict[str, tuple[str, ...]] = {
    "ngram": ("tokens", "rows", "min_match"),
    "suffix": ("tokens", "rows", "min_match", "remembered"),
    "draft": ("model", "tokens", "rows", "kv_cache_memory"),
    "heads": ("tokens", "rows"),
}
"""The proposers, and the names of what each takes."""
MUST = (
    f'none, or {" or ".join(METHODS)} with what it takes, such as "ngram,tokens=4", "draft,model=out/draft" or '
    '{"method": "ngram", "tokens": "auto"}'
)


@dataclass(frozen=True)
class Speculation:
    """What proposes tokens.

    tokens: how many are proposed for each sequence in a step; 0 means as many as pay. rows: the most that are proposed
    in a step for all sequences; each takes the memory of a row of logits. min_match: the tokens that must be equal
    before a text is thought to go on as it did before. remembered: the tokens of earlier outputs that are kept, about
    50 bytes each. model: the engine of the draft model. kv_cache_memory: the bytes
    of its KV cache; None means as many as a full batch can use, in at most half of the free memory.
    """

    method: str
    tokens: int = 0
    rows: int = 64
    min_match: int = 2
    remembered: int = 1 << 19
    model: str | None = None
    kv_cache_memory: int | None = None


NUMBERS = {
    "tokens": (1, MAX_TOKENS),
    "rows": (1, MAX_ROWS),
    "min_match": (2, 32),
    "remembered": (1024, 1 << 26),
}
"""The least and the greatest value of each number."""


def read_speculation(value: Any, prefix: str = "") -> Speculation | None:
    """Returns what the user says; None without a proposer. Raises InvalidOptionError."""
    if value is None or value == "none":
        return None
    given = dict(value) if isinstance(value, Mapping) else _read_text(value, prefix)
    method = given.pop("method", None)
    if method not in METHODS:
        raise InvalidOptionError(f"{prefix}speculative must be {MUST}, got method {method!r}")
    unknown = [name for name in given if name not in METHODS[method]]
    if unknown:
        takes = f"method {method} takes {', '.join(METHODS[method])}"
        raise InvalidOptionError(f"{prefix}speculative: {takes}, not {', '.join(map(str, unknown))}")
    values: dict[str, Any] = {name: _number(name, given[name], prefix) for name in NUMBERS if name in given}
    if "kv_cache_memory" in given:
        values["kv_cache_memory"] = parse_size(given["kv_cache_memory"], f"{prefix}speculative: kv_cache_memory")
    if method == "draft":
        values["model"] = _model(given.get("model"), prefix)
    return Speculation(method, **values)


def _model(value: Any, prefix: str) -> str:
    if isinstance(value, (str, os.PathLike)) and os.fspath(value):
        return os.fspath(value)
    raise InvalidOptionError(
        f"{prefix}speculative: method draft needs model, the folder of an engine with the same tokenizer, as in "
        f'"draft,model=out/draft"; got {value!r}'
    )


def _read_text(value: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(value, str):
        raise InvalidOptionError(f"{prefix}speculative must be {MUST}, got {value!r}")
    method, *rest = (part.strip() for part in value.split(","))
    given: dict[str, Any] = {"method": method}
    for part in rest:
        name, equals, text = part.partition("=")
        if not equals or name.strip() in given:
            raise InvalidOptionError(f"{prefix}speculative must be {MUST}, got {part!r} in {value!r}")
        given[name.strip()] = text.strip()
    return given


def _number(name: str, value: Any, prefix: str) -> int:
    low, high = NUMBERS[name]
    if name == "tokens" and value == AUTO:
        return 0
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not is_int(number) or not low <= number <= high:
        either = f"{AUTO} or " if name == "tokens" else ""
        raise InvalidOptionError(
            f"{prefix}speculative: {name} must be {either}a whole number from {low} to {high}, got {value!r}"
        )
    return int(number)
