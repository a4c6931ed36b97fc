"""Reads and writes the files of `--quantize-config`: a JSON object that gives patterns of weights their formats.

    {"layers": "int4:g64", "lm_head": "int8", "model.layers.*.mlp.down_proj.weight": "int8:g128"}

A key is a pattern (format_rules.py), "layers", "embedding" or "lm_head"; a value is a FORMAT of `--quantize` or "none".
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tensorwright.engine_format.format_rules import is_pattern
from tensorwright.engine_format.weight_formats import PARTS, QuantizeSpec, format_name
from tensorwright.errors import InvalidOptionError, reason
from tensorwright.json_text import read_json

MAX_BYTES = 1 << 20
"""The largest file that is read."""
LAYERS = "layers"
"""The key of the matrices that no pattern matches, but for the embedding and lm_head."""
OPTION = "quantize_config"


def with_config(quantize: str | None, place: str) -> str:
    """Returns the text of a spec, as `parse_spec` reads it, that has the rules of a file beside those of `quantize`.

    quantize: None means that the layers have the format that the file gives them, by default none. Raises
    InvalidOptionError for a file that cannot be read, that is no such object, or that says what `quantize` says.
    """
    pairs = _pairs(place)
    given = dict(pairs)
    if len(given) < len(pairs):
        twice = sorted({key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1})
        raise _wrong(place, f"the key {', '.join(twice)} stands there more than once; leave one")
    if quantize is not None and LAYERS in given:
        raise _wrong(place, f"{LAYERS} stands there, and quantize={quantize!r} says it too; leave out one of them")
    for key, value in pairs:
        if key not in (LAYERS, *PARTS) and not is_pattern(key):
            words = ", ".join((LAYERS, *PARTS))
            raise _wrong(place, f"a key must be {words}, or a pattern of names of weights, not {key!r}")
        if not isinstance(value, str) or "," in value or "=" in value:
            raise _wrong(place, f"the value of {key} must be the name of a format or none, not {value!r}")
    base = quantize if quantize is not None else str(given.get(LAYERS, "none"))
    return ",".join([base, *(f"{key}={value}" for key, value in pairs if key != LAYERS)])


def config_text(spec: QuantizeSpec) -> str:
    """Returns the content of a file that gives the formats of a spec."""
    parts = {LAYERS: spec.linears, "embedding": spec.embedding, "lm_head": spec.lm_head}
    table = {name: format_name(fmt) for name, fmt in parts.items()}
    table.update({rule.pattern: format_name(rule.value) for rule in spec.rules})
    return json.dumps(table, indent=2) + "\n"


def _pairs(place: str) -> list[tuple[str, object]]:
    path = Path(os.path.expanduser(place))
    if not path.is_file():
        raise _wrong(place, "no such file; give a file of JSON")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(place, f"cannot be read ({reason(error)})") from error
    if len(data) > MAX_BYTES:
        raise _wrong(place, f"larger than {MAX_BYTES} bytes; say more with fewer patterns")
    try:
        table = read_json(data)
    except ValueError as error:
        raise _wrong(place, f"is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise _wrong(place, f"must hold an object, pattern to format, not {type(table).__name__}")
    pairs: list[tuple[str, object]] = json.loads(data, object_pairs_hook=list)  # A dict would forget the first of two.
    return pairs


def _wrong(place: str, why: str) -> InvalidOptionError:
    return InvalidOptionError(f"{OPTION}: {place}: {why}")
