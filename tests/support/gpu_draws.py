"""Cases of draw_tokens: rows of logits of many kinds, each with other parameters."""

from __future__ import annotations

import itertools

import numpy as np

from support.gpu_rows import Arrays, Case
from tensorwright.plugins.draw_tokens import launch
from tensorwright.plugins.draw_tokens.op import CANDIDATES, FIELDS, NOT_DRAWN, Draw, reference

SHAPES = ("normal", "peaked", "ties", "masked", "equal", "flat")
PARAMETERS = (
    {}, {"top_k": 1}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 20, "top_p": 0.7},
    {"top_p": 0.95, "min_p": 0.02}, {"top_k": 50, "top_p": 0.8, "min_p": 0.1}, {"top_k": 50, "min_p": 0.3},
    {"top_p": 0.0}, {"top_p": 0.9999}, {"min_p": 1.0}, {"top_k": 10**6},
)  # fmt: skip
"""Every combination of what may leave out tokens, and the ends of their ranges."""
TEMPERATURES = (1.0, 0.7, 1.9, 0.01)
COMBINATIONS = tuple(itertools.product(TEMPERATURES, PARAMETERS))


def row_of(shape: str, columns: int, seed: int) -> np.ndarray:
    """Returns float32 logits [columns]."""
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(columns) * {"peaked": 3.5, "flat": 0.3}.get(shape, 1.5)
    if shape == "ties":
        row = np.round(row * 2)
    if shape == "equal":
        row = np.full(columns, -3.0)
    if shape == "masked":
        row[rng.random(columns) < 0.6] = -np.inf
        row[rng.integers(columns)] = 2.0
    return row.astype(np.float32)


def draws_of(count: int, seed: int) -> list[Draw]:
    """Returns so many draws, of all parameters and temperatures in turn."""
    rng = np.random.default_rng(seed)
    each = itertools.islice(itertools.cycle(COMBINATIONS), count)
    return [Draw(temperature, uniform=float(rng.random()), **some) for temperature, some in each]


def draw_case(rows: int, columns: int, seed: int = 0) -> Case:
    """Rows of all shapes. Some are greedy, some are not drawn, and one each has a NaN, has an infinity, and has nothing
    above minus infinity."""
    logits = np.zeros((rows, columns), np.float32)
    fields = np.zeros((rows, len(FIELDS)), np.int32)
    for r, draw in enumerate(draws_of(rows, seed)):
        logits[r], fields[r] = row_of(SHAPES[r % len(SHAPES)], columns, seed + r), draw.fields()
    if columns > CANDIDATES:
        fields[0] = Draw(1.9, top_p=0.9999, uniform=0.5).fields()  # keeps too many
    fields[3::7] = Draw(0.0).fields()
    fields[5::11] = NOT_DRAWN
    for row, value in ((2, np.nan), (4, np.inf), (10, np.nan)):
        if row < rows:
            logits[row, columns // 2] = value
    if rows > 8:
        logits[8] = -np.inf

    def expected(x: Arrays) -> Arrays:
        (tokens,) = reference([x["logits"], x["draws"]], {}, "float32")
        return {"tokens": tokens}

    return Case(
        f"draw_tokens-{rows}x{columns}",
        launch,
        {"columns": columns, "max_rows": rows + 1},
        {},
        {"logits": (logits, "float32"), "draws": (fields, "int32")},
        {"tokens": ((rows,), "int32")},
        expected,
    )


CASES = [draw_case(16, 4100), draw_case(20, 97, 1), draw_case(3, 1, 2), draw_case(5, 9000, 3), draw_case(0, 50)]
