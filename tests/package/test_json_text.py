"""JSON that others wrote: what is read can be shown, walked and written."""

from __future__ import annotations

import json

import pytest

from tensorwright.json_text import MAX_DEPTH, read_json

DEEPEST = "[" * MAX_DEPTH + "]" * MAX_DEPTH


@pytest.mark.parametrize("text", ["1", '{"a": [null, "\\ud83d\\ude00"], "\u00e9": 0.5}', DEEPEST, '{"\\\\ud800": 1}'])
def test_what_json_is(text: str) -> None:
    assert read_json(text) == read_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "Expecting property name"),
        (b'"\xff"', "can't decode byte 0xff"),
        (b"9" * 5000, "integer string conversion"),
        (f"[{DEEPEST}]".encode(), "more than 100 lists and objects inside each other"),
        (b"[" * 100_000, "more than 100 lists and objects inside each other"),
        (rb'{"a": "\ud800"}', "surrogates not allowed"),
        (rb'{"\udc00": 1}', "surrogates not allowed"),
    ],
)
def test_what_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_json(data)
