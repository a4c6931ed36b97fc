"""Reads values that a model writes as Python literals or as JSON, and makes JSON of them while they come.

Every character is looked at once, as it comes, so that no piece of an answer costs more than its own length. Literals
are texts, numbers, True, False, None, and lists, tuples and dicts of them; JSON's words true, false and null are taken
too. Neither code nor an expression is a literal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from tensorwright.runtime.chat_formats.text_reader import Malformed, Steps, TextReader

MAX_DEPTH = 50
"""The most brackets inside each other in a value."""
MAX_SCALAR = 1024
"""The most characters of a number or of a word."""
QUOTES = ('"', "'")
RAW = ("r", "R")
PREFIXES = (*RAW, "u", "U")
"""What may stand before a text's quote. Bytes and formatted texts are no values of JSON."""
CLOSING = {"[": "]", "(": ")", "{": "}"}
WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
PYTHON_NUMBER = re.compile(r"[+-]?[0-9.][0-9A-Za-z_.+\-]*")
SCALAR = re.compile(r"[\w.+\-]*")
HEX = {"x": 2, "u": 4, "U": 8}
"""The digits of an escape by its letter."""
OCTAL = re.compile(r"[0-7]{1,3}")
ESCAPES = {
    "\n": "", "\\": "\\\\", "'": "'", '"': '\\"', "/": "/", "a": "\\u0007", "b": "\\b", "f": "\\f", "n": "\\n",
    "r": "\\r", "t": "\\t", "v": "\\u000b",
}  # fmt: skip
"""What an escape of one letter becomes in JSON. JSON has the slash, which Python takes for two characters."""
_RUNS = {quote: re.compile(rf"[^{quote}\\]*") for quote in QUOTES}


def text_begins(reader: TextReader) -> Steps[str]:
    """Returns the quote with which a text begins here, with the letter before it; "" if none begins."""
    seen = yield from reader.peek(1)
    if seen in QUOTES:
        return seen
    if seen in PREFIXES:
        seen = yield from reader.peek(2)
        return seen if seen[1:] in QUOTES else ""
    return ""


def read_text(reader: TextReader, put: Callable[[str], None]) -> Steps[bool]:
    """Reads the text that begins here, and passes it to `put` as JSON, piece by piece. Neighbouring texts are one text.

    Returns whether the text ended. If not, the answer was cut off, and so is the JSON.
    """
    put('"')
    while begin := (yield from text_begins(reader)):
        reader.take(len(begin))
        if not (yield from _read_body(reader, begin[-1], begin[0] in RAW, put)):
            return False
        yield from reader.space()
    put('"')
    return True


def read_value(reader: TextReader) -> Steps[str]:
    """Reads one value, and returns it as JSON. Raises Malformed for what is no literal, and for one that is cut off."""
    parts: list[str] = []
    yield from _read_value(reader, parts, 0)
    return "".join(parts)


def _read_body(reader: TextReader, quote: str, raw: bool, put: Callable[[str], None]) -> Steps[bool]:
    """Reads a text up to its closing quote. Returns whether there was one. A line end needs no escape, for models
    forget it, and nothing else could be meant."""
    closing = quote
    following = yield from reader.peek(2)
    if following == quote * 2:
        reader.take(2)
        closing = quote * 3
    while there := (yield from reader.waiting()):
        count = reader.span(_RUNS[quote])
        put(_escaped(reader.take(count)))
        if count == there:
            continue
        if (yield from reader.peek(1)) == "\\":
            put((yield from _read_escape(reader, raw)))
        elif (yield from reader.accept(closing)):
            return True
        else:
            put(_escaped(reader.take(1)))  # a quote inside three
    return False


def _read_escape(reader: TextReader, raw: bool) -> Steps[str]:
    """Reads a backslash and what it stands for, and returns that as JSON. An escape that Python does not know stands
    for itself. One that the end of the answer cuts off is left out."""
    seen = yield from reader.peek(2)
    letter = seen[1:]
    if letter in HEX and not raw:
        seen = yield from reader.peek(2 + HEX[letter])
        digits = seen[2:]
        if len(digits) == HEX[letter] and all(digit in "0123456789abcdefABCDEF" for digit in digits):
            code = int(digits, 16)
            if letter == "u":  # half of a pair in UTF-16 too, as JSON has it
                return reader.take(len(seen))
            if code <= 0x10FFFF and not 0xD800 <= code < 0xE000:
                reader.take(len(seen))
                return _escaped(chr(code))
    if not raw and (found := OCTAL.match((yield from reader.peek(4)) if letter in tuple("01234567") else seen, 1)):
        reader.take(found.end())
        return _escaped(chr(int(found[0], 8)))
    reader.take(2)
    if not letter:
        return ""
    return _escaped("\\" + letter) if raw else ESCAPES.get(letter, _escaped("\\" + letter))


def _read_value(reader: TextReader, parts: list[str], depth: int) -> Steps[None]:
    if (yield from text_begins(reader)):
        if not (yield from read_text(reader, parts.append)):
            raise Malformed
        return
    mark = yield from reader.peek(1)
    if mark not in CLOSING:
        parts.append(_scalar((yield from reader.run_of(SCALAR, MAX_SCALAR))))
        return
    if depth == MAX_DEPTH:
        raise Malformed
    yield from _read_group(reader, parts, mark, depth + 1)


def _read_group(reader: TextReader, parts: list[str], mark: str, depth: int) -> Steps[None]:
    """Reads what stands in brackets. A value alone in round ones is that value, and a comma makes it a tuple."""
    reader.take(1)
    first = len(parts)
    parts.append("{" if mark == "{" else "[")
    count, comma = 0, ""
    while True:
        yield from reader.space()
        if (yield from reader.accept(CLOSING[mark])):
            break
        if count and not comma:
            raise Malformed
        parts.append(", " if count else "")
        if mark == "{":
            yield from _read_key(reader, parts)
        yield from _read_value(reader, parts, depth)
        count += 1
        yield from reader.space()
        comma = yield from reader.accept(",")
    if mark == "(" and count == 1 and not comma:
        parts[first] = ""
    else:
        parts.append("}" if mark == "{" else "]")


def _read_key(reader: TextReader, parts: list[str]) -> Steps[None]:
    """Reads a dict's key and the colon after it. All keys of JSON are texts, so a number becomes one."""
    if (yield from text_begins(reader)):
        if not (yield from read_text(reader, parts.append)):
            raise Malformed
    else:
        parts.append(json.dumps(_scalar((yield from reader.run_of(SCALAR, MAX_SCALAR)))))
    yield from reader.space()
    yield from reader.expect(":")
    yield from reader.space()
    parts.append(": ")


def _scalar(word: str) -> str:
    """Returns a number or a word as JSON. Raises Malformed for any other."""
    if word in WORDS:
        return WORDS[word]
    if JSON_NUMBER.fullmatch(word):
        return word
    if not PYTHON_NUMBER.fullmatch(word):
        raise Malformed
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError as error:
        raise Malformed from error
    if not math.isfinite(number) or not any(mark in word for mark in ".eE"):
        raise Malformed  # 007 is no number of Python
    return json.dumps(number)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
