"""Where the rows and columns of the model's matrices are in the engine's: expressions that join, cut and reorder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tensorwright.builder.emit.adapter_places import _follow, _Refused
from tensorwright.engine_format.adapter_places import AdapterPlaces, ModulePart, ProductPlaces, numbers_of, runs_of
from tensorwright.errors import EngineError
from tensorwright.ir.weights import parse_expr
from tensorwright.models.dtypes import Tensor
from tensorwright.models.read_weights import evaluate


class Source:
    """Tensors whose elements are all different."""

    shapes: ClassVar = {"a": (6, 4), "b": (8, 4), "c": (4, 6), "cube": (2, 3, 4)}

    def __init__(self) -> None:
        numbers = iter(range(10_000))
        self.arrays = {
            name: np.array([next(numbers) for _ in range(int(np.prod(shape)))], np.float32).reshape(shape)
            for name, shape in self.shapes.items()
        }

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def dtype(self, name: str) -> str:
        return "float32"

    def read_part(self, name: str, ranges: tuple[tuple[int, int], ...]) -> Tensor:
        return Tensor("float32", self.arrays[name][tuple(slice(*span) for span in ranges)])


@pytest.mark.parametrize(
    "text",
    [
        '"a"',
        'concat(0, "a", "b")',
        'slice(0, 2, 9, concat(0, "a", "b"))',
        'slice(1, 1, 3, "a")',
        'concat(1, slice(1, 0, 1, "b"), slice(1, 2, 4, "b"))',
        'concat(0, every(0, 0, 2, "a"), every(0, 1, 2, "a"))',
        'transpose("c")',
        'slice(0, 1, 4, transpose("c"))',
        'reshape([6, 4], transpose(reshape([2, 3, 4], "a")))',
        'reshape([6, 4], slice(1, 0, 3, reshape([2, 4, 4], "b")))',
        'reshape([12, 4], repeat(1, 2, reshape([6, 1, 4], "a")))',
        'reshape([14, 4], concat(1, reshape([2, 3, 4], "a"), reshape([2, 4, 4], "b")))',
        'reshape([12, 4], stack("a", "a"))',
    ],
)
def test_every_element_is_where_the_weight_has_it(text: str) -> None:
    source, expr = Source(), parse_expr(text)
    found = _follow(expr, source)
    rebuilt = [
        (source.arrays[found.tensors[which]].T if found.transposed else source.arrays[found.tensors[which]])[
            row, found.columns
        ]
        for which, row in zip(found.which, found.rows, strict=True)
    ]
    np.testing.assert_array_equal(rebuilt, evaluate(expr, source).data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('scaled(1, channel_scales(0, 4), "a")', "scaled by a calibration"),
        ('divided(0, 0, 0, channel_scales(0, 6), "a")', "scaled by a calibration"),
        ('ordered(1, column_order("a", 4), "a")', "the order of its quantization groups"),
        ('slice(0, 0, 1, "cube")', "no matrix in the checkpoint"),
        ('reshape([8, 3], "a")', "cuts or joins"),
        ('repeat(1, 4, slice(1, 0, 1, "a"))', "repeats"),
        ('concat(0, "a", transpose("c"))', "stored the other way round"),
        ('concat(0, slice(1, 0, 2, "a"), slice(1, 1, 3, "b"))', "other inputs"),
        ('concat(1, slice(0, 0, 4, "a"), slice(0, 0, 4, "b"))', "side by side"),
        ('transpose(concat(0, "a", "b"))', "transposed after it was joined"),
    ],
)
def test_what_cannot_be_followed(text: str, words: str) -> None:
    with pytest.raises(_Refused, match=words):
        _follow(parse_expr(text), Source())


@pytest.mark.parametrize("numbers", [[], [3], [0, 1, 2], [0, 2, 4, 1, 3, 5], [5, 4, 3, 9, 9, 0], [7, 7, 7]])
def test_runs_stand_for_their_numbers(numbers: list[int]) -> None:
    assert numbers_of(runs_of(np.array(numbers, np.int64))).tolist() == numbers


PART = ModulePart("m", (4, 6), False, 0, ((0, 4, 1),), ((0, 6, 1),))
PLACES = AdapterPlaces((ProductPlaces(3, (PART,)),), {"x": "is a table"})


def test_the_file_there_and_back() -> None:
    data = PLACES.to_text().encode()
    assert AdapterPlaces.from_bytes(Path("adapters.json"), data) == PLACES
    assert (PLACES.modules, PLACES.most_modules) == ({"m": (4, 6)}, 1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"version":1', '"version":2', "version must be 1, is 2"),
        ('"version":1', '"versions":1', "unknown keys versions"),
        ("[0,4,1]", "[0,5,1]", "a run must be start, count and step within 4"),
        ("[0,4,1]", "[0,4]", "a run must be start, count and step"),
        ("[0,4,1]", "[0,1048577,0]", "m: runs must stand for at most 1048576 numbers"),
        ("[[0,4,1]]", "[[0,1048576,0],[0,1,1]]", "m: runs must stand for at most 1048576 numbers"),
        ("[4,6]", "[4]", "shape must be outputs and inputs"),
        ('"column":0', '"column":"0"', "column must be int"),
        ("{", "[", "not readable as JSON"),
    ],
)
def test_altered_files(old: str, new: str, words: str) -> None:
    assert old in PLACES.to_text()
    with pytest.raises(EngineError, match=words):
        AdapterPlaces.from_bytes(Path("adapters.json"), PLACES.to_text().replace(old, new, 1).encode())


@pytest.mark.parametrize("parts", [(), (PART, replace(PART, inputs=((0, 5, 1),)))])
def test_parts_of_a_product_have_as_many_inputs(parts: tuple[ModulePart, ...]) -> None:
    text = replace(PLACES, products=(ProductPlaces(3, parts),)).to_text()
    with pytest.raises(EngineError, match="product 3 must have parts, all of as many inputs"):
        AdapterPlaces.from_bytes(Path("adapters.json"), text.encode())
