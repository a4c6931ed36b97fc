"""draw_tokens: what the definition in numpy gives and refuses, and that its tokens are those of the sampler."""

from __future__ import annotations

import re

import numpy as np
import pytest

from support.gpu_draws import PARAMETERS, SHAPES, TEMPERATURES, row_of
from support.places import ROOT
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.draw_tokens import op
from tensorwright.plugins.draw_tokens.op import Draw, draw_row
from tensorwright.runtime import _runtime, _testing

pytestmark = pytest.mark.computes

SEED = 11


def drawn(logits: np.ndarray, draw: Draw) -> int:
    return draw_row(logits, np.array(draw.fields(), np.int32))


def test_weights_are_those_of_the_exponential() -> None:
    """As `slack` counts on: 2^-27 of a weight, and 1 that is cut off."""
    x = np.concatenate([np.arange(0, 2**20), np.random.default_rng(0).integers(0, 40 * 2**34, 10**6), [40 * 2**34]])
    exact = np.exp(-x.astype(np.longdouble) / 2**34) * 2**44
    error = np.abs(op.weights(x) - exact)
    assert (error <= exact * 2.0**-27 + 1).all()
    assert (error > exact * 2.0**-32).any()


def test_the_runtime_writes_the_same_fields() -> None:
    text = (ROOT / "runtime/core/cuda/draw_fields.h").read_text()
    (names,) = re.findall(r"enum DrawField : size_t \{ (.*) \};", text)
    names = [re.sub("([A-Z])", r"_\1", name.removeprefix("k")).lower().strip("_") for name in names.split(", ")]
    assert [name.removesuffix(" = 0") for name in names] == [name for name in op.FIELDS if "unused" not in name]
    assert f"kDrawFields = {len(op.FIELDS)};" in text


def test_distances_are_exact() -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-3, 1.0, 1e4):
        scores = (rng.standard_normal(10**4) * scale).astype(np.float32)
        exact = (scores.max().astype(np.float64) - scores) * 2**34
        found = op.distances(scores.max(), scores)
        near = exact < 39 * 2**34
        assert (np.abs(found - exact)[near] <= 2).all()
        assert (found[~near] >= 39 * 2**34).all()


@pytest.mark.parametrize("columns", [1, 40, 4000])
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_those_of_the_sampler(shape: str, columns: int) -> None:
    """A token that is given is the sampler's, and nearly every one is given."""
    undecided = decided = 0
    for at, (temperature, some) in enumerate((t, p) for t in TEMPERATURES for p in PARAMETERS):
        logits = row_of(shape, columns, at)
        sampling = _runtime.Sampling()
        sampling.temperature = temperature
        for name, value in some.items():
            setattr(sampling, name, value)
        for position in range(3):
            uniform = _testing.philox_uniform(SEED, position)
            token = drawn(logits, Draw(temperature, uniform=uniform, **some))
            undecided += token < 0
            if token >= 0:
                decided += 1
                assert token == _testing.sample(logits, sampling, SEED, position)[0], (temperature, some, position)
    # A number near a border is rare, but equal weights have borders at round shares.
    assert decided > 0
    assert shape == "equal" or undecided <= 0.02 * decided


def test_greedy_takes_the_first_of_the_largest() -> None:
    assert drawn(np.array([1, 3, -np.inf, 3], np.float32), Draw(0.0)) == 1
    assert drawn(np.array([-0.0, 0.0], np.float32), Draw(0.0)) == 0


@pytest.mark.parametrize(
    "row", [[1, np.nan], [1, np.inf], [-np.inf, -np.inf]], ids=["NaN", "infinity", "nothing is finite"]
)
@pytest.mark.parametrize("draw", [Draw(0.0), Draw(1.0), Draw(1.0, top_p=0.5)], ids=["greedy", "all", "top_p"])
def test_rows_without_a_distribution_are_left_to_the_host(row: list[float], draw: Draw) -> None:
    assert drawn(np.array(row, np.float32), draw) == -1


def test_what_is_not_sure_is_left_to_the_host() -> None:
    equal = np.zeros(4, np.float32)
    assert drawn(equal, Draw(1.0, uniform=0.4)) == 1
    assert drawn(equal, Draw(1.0, uniform=0.5)) == -1, "the border of two tokens"
    assert drawn(equal, Draw(1.0, uniform=0.4, top_p=0.5)) == -1, "the border of what top_p keeps"
    assert drawn(equal, Draw(1.0, uniform=0.4, top_p=0.6)) == 2, "three of four, the highest id first"
    assert drawn(np.array([0, np.log(0.25)], np.float32), Draw(1.0, min_p=0.25)) == -1, "the border of min_p"
    assert drawn(np.array([3e38, 0], np.float32), Draw(1e-3)) == -1, "a score overflows"
    many = np.zeros(op.CANDIDATES + 1, np.float32)
    assert drawn(many, Draw(1.0, uniform=0.3, top_p=0.9)) == -1, "more than are put in order"
    assert drawn(many, Draw(1.0, uniform=0.3)) == int(0.3 * len(many))


def test_a_row_that_is_not_drawn_has_no_token() -> None:
    (tokens,) = op.reference([np.zeros((2, 3), np.float32), [op.NOT_DRAWN, Draw(0.0).fields()]], {}, "float32")
    assert tokens.tolist() == [-1, 0]


def test_infer() -> None:
    logits, draws = Value("x", "float32", ("rows", 8)), Value("d", "int32", ("rows", len(op.FIELDS)))
    assert op.infer([logits, draws], {}) == [("int32", ("rows",))]
    with pytest.raises(GraphError, match="draws"):
        op.infer([logits, Value("d", "int32", ("rows", 3))], {})
    with pytest.raises(GraphError, match="1 to 262144"):
        op.infer([Value("x", "float32", ("rows", 2**18 + 1)), draws], {})
