"""Values in answers: Python's literals become JSON as they come, and JSON is known as JSON, whatever the cut."""

from __future__ import annotations

import ast
import json
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwright.runtime.chat_formats.json_check import JsonCheck
from tensorwright.runtime.chat_formats.python_literal import read_value
from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader

TEXTS = st.text(st.sampled_from("ab'\"\\/\n\t\x07\u2028éx😀 ,)]}{"), max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(TEXTS | st.integers() | st.none(), inner, max_size=4)
    ),
    max_leaves=12,
)


def as_json(text: str, size: int = 1) -> str | None:
    """The JSON that becomes of a literal which comes in pieces of `size` characters; None if it is none."""
    reader = TextReader()
    made: list[str] = []

    def steps() -> Steps[None]:
        made.append((yield from read_value(reader)))
        if (yield from reader.peek(1)):
            raise Malformed

    running = steps()
    try:
        next(running)
        for at in range(0, len(text), size):
            reader.feed(text[at : at + size])
            next(running)
        reader.ended = True
        for _ in running:
            pass
    except StopIteration:
        pass
    except Malformed:
        return None
    return made[0]


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(value=VALUES, size=st.integers(1, 9), ascii_only=st.booleans())
def test_literals_mean_what_python_reads(value: Any, size: int, ascii_only: bool) -> None:
    meant = json.loads(json.dumps(value))
    for written in (repr(value), json.dumps(value, ensure_ascii=ascii_only)):
        made = as_json(written, size)
        assert made is not None
        assert json.loads(made) == meant


@pytest.mark.parametrize(
    "written",
    [
        "0x1F", "1_000", "+3", ".5", "1.", "-1e-5", "(1)", "((1),)", "()", "[1,]", "{'a': 1,}", "'a' 'b'", r"r'\d'",
        "u'x'", "'''a'b'''", '"""x"y"""', r"'\x41\101\u00e9\U0001F600\q'", r"'\xZZ'", "''", "[ 'a' , 'b' ]",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:invalid escape sequence", "ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_the_ways_in_which_python_writes_values(written: str) -> None:
    try:
        meant = json.dumps(ast.literal_eval(written))
    except SyntaxError:  # what Python refuses stands for itself
        meant = json.dumps(written[1:-1])
    made = [as_json(written, size) for size in (1, 2, 100)]
    assert made[0] is not None
    assert made == made[:1] * 3
    assert json.loads(made[0]) == json.loads(meant)


@pytest.mark.parametrize(
    ("written", "made"),
    [(r'"\/"', '"/"'), (r"'\ud83d\ude00'", r'"\ud83d\ude00"'), ("'a\nb'", r'"a\nb"'), ("[true, None]", "[true, null]"),
     ("1e999", "1e999")],
)  # fmt: skip
def test_what_json_has_and_what_models_forget(written: str, made: str) -> None:
    assert as_json(written) == made


@pytest.mark.parametrize(
    "written",
    ["", "b'x'", "f'x'", "{1, 2}", "007", "+1e999", "[1 2]", "{'a' 1}", "1+2", "f()", "x", "{(1,): 2}", "[", "{'a':",
     "'abc", "[1", "[,]", "-True", "1" * 2000, "[" * 51 + "]" * 51],
)  # fmt: skip
def test_what_is_no_literal(written: str) -> None:
    assert as_json(written) is None


def refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_json_is_known_as_json(data: Any) -> None:
    """The judgement is that of Python's parser, for JSON and for JSON with a wrong character in it."""
    text = json.dumps(data.draw(VALUES), ensure_ascii=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text)))
        wrong = data.draw(st.sampled_from(["", '"', ",", "x", "\n", "\\", "1", "u12", "[", "}", ":", " ", "-", "."]))
        text = text[:at] + wrong + text[at + data.draw(st.integers(0, 1)) :]
    check, size = JsonCheck(), data.draw(st.integers(1, 9))
    for begin in range(0, len(text), size):
        check.add(text[begin : begin + size])
    try:
        json.loads(text, parse_constant=refuse)
        meant = True
    except ValueError:
        meant = False
    assert check.ended() is meant
