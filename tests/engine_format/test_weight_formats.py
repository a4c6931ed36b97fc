"""The one spelling of weight formats that the cache of engines uses: that of the builder, for whatever that accepts."""

from __future__ import annotations

import itertools

import pytest

from tensorwright.engine_format.weight_formats import spelled_out
from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.quantized_matmul.formats import parse_spec

NAMES = ("none", "w8a8", "fp8", "int4", "int8", "int4:g32", "int8:g64", "int4:g128")


def test_as_the_builder_spells_them_out() -> None:
    tried = 0
    for first, embedding, head in itertools.product(NAMES, (None, *NAMES), (None, *NAMES)):
        parts = [f"embedding={embedding}"] * (embedding is not None) + [f"lm_head={head}"] * (head is not None)
        for order in (parts, parts[::-1]):
            text = ", ".join([first, *order])
            assert spelled_out(text) == str(parse_spec(text))
            tried += 1
    assert tried == 2 * 8 * 9 * 9


@pytest.mark.parametrize(
    "text", ["", "fp4", "int4:", "int4,int8", "int4,head=int8", "int4,lm_head=", "int4,lm_head=int8,lm_head=int4"]
)
def test_what_the_builder_refuses_is_left_to_it(text: str) -> None:
    assert spelled_out(text) == text
    with pytest.raises(InvalidOptionError):
        parse_spec(text)
