"""Positions that begin behind the number of the padding are those that a model makes of tokens itself."""

from __future__ import annotations

import pytest
import torch

from support.survey import make_model
from tensorwright.builder.trace.fix_text_positions import fix_text_positions
from tensorwright.builder.trace.load_model import load_model
from tensorwright.errors import UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("kosmos")
    make_model("kosmos-2.5", path)
    return load_model(open_checkpoint(path), "float32")


def table_of(model):
    return next(module for name, module in model.named_modules() if name.endswith("embed_positions"))


def test_given_positions_are_those_of_tokens(model):
    table = table_of(model)
    ids, positions = torch.full((1, 5), 9), torch.arange(5)[None]
    before = table(input_ids=ids)
    assert not torch.equal(table(input_ids=ids, position_ids=positions), before)
    fix_text_positions(model)
    assert torch.equal(table(input_ids=ids, position_ids=positions), before)
    assert torch.equal(table(input_ids=ids), before)


def test_positions_of_another_kind_are_refused(model):
    table = table_of(model)
    table.create_position_ids_from_input_ids = lambda ids, padding: ids
    with pytest.raises(UnsupportedModelError, match=r"embed_positions .* makes positions of tokens in its own way"):
        fix_text_positions(model)
