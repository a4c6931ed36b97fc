"""The files of --quantize-config: what they say together with --quantize, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorwright.engine_format.quantize_config import MAX_BYTES, config_text, with_config
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.errors import InvalidOptionError


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("quantize", "table", "expected"),
    [
        (None, {}, "none"),
        (None, {"a.*": "int8", "layers": "int4"}, "int4,a.*=int8"),
        ("int4,lm_head=int8", {"a.*": "int8", "embedding": "none"}, "int4,lm_head=int8,embedding=none,a.*=int8"),
        ("w8a8", {"b.w": "none", "*": "int8"}, "w8a8,b.w=none,*=int8"),
    ],
)
def test_a_file_adds_to_the_formats_of_quantize(tmp_path, quantize, table, expected):
    place = write(tmp_path / "formats.json", json.dumps(table))
    assert parse_spec(with_config(quantize, place)) == parse_spec(expected)


def test_the_text_of_a_spec_is_a_file_of_the_same_formats(tmp_path):
    spec = parse_spec("int4:g64,embedding=none,lm_head=int8,a.*.w=int8:g128,a.0.w=none,*.b=mxfp4")
    assert parse_spec(with_config(None, write(tmp_path / "formats.json", config_text(spec)))) == spec


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold an object"),
        (b"\xff\xfe", "is not JSON"),
        ('{"a.b": "int4", "a.b": "int8"}', "the key a.b stands there more than once"),
        ('{"head": "int4"}', "a key must be layers, embedding, lm_head, or a pattern of names of weights, not 'head'"),
        ('{"a.b,c.d": "int4"}', "or a pattern of names of weights, not 'a.b,c.d'"),
        ('{"a.b": 4}', "the value of a.b must be the name of a format or none, not 4"),
        ('{"a.b": "int4,c.d=int8"}', "the value of a.b must be the name of a format"),
        ('{"layers": "int4"}', "layers stands there, and quantize='int8' says it too"),
        (b" " * (MAX_BYTES + 1), f"larger than {MAX_BYTES} bytes"),
        ("[" * 200 + "]" * 200, "is not JSON"),
    ],
)
def test_wrong_files_are_refused_by_name(tmp_path, content, why):
    place = write(tmp_path / "formats.json", content)
    with pytest.raises(InvalidOptionError) as refused:
        with_config("int8", place)
    assert str(refused.value).startswith(f"quantize_config: {place}: ")
    assert why in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidOptionError, match="no such file"):
        with_config(None, str(tmp_path / "none.json"))
