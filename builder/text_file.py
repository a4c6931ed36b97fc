"""Gives calibrations their text, and encodes the beginning of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorwright.options.text_file import NamedText, read_text_file

_CHARACTERS_PER_TOKEN = 16  # More than a token of any usual text has: a long file is not encoded whole.


def read_calibration_text(place: str | None) -> NamedText | None:
    """Returns the text of the option calibration_text, None if it is not given. Raises InvalidOptionError."""
    return None if place is None else read_text_file("calibration_text", place)


def encode_beginning(text: str, tokenizer: Path, count: int) -> Any:
    """Returns the encoding, by the library tokenizers, of the beginning of a text: more than `count` tokens besides the
    special ones, or the whole text.

    tokenizer: a tokenizer.json. It may set truncation and padding for training, which are not for us.
    """
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(tokenizer))
    library.no_truncation()
    library.no_padding()
    size = _CHARACTERS_PER_TOKEN * count
    while True:
        encoded = library.encode(text[:size])
        if len(encoded.ids) - sum(encoded.special_tokens_mask) > count or size >= len(text):
            return encoded
        size *= 4
