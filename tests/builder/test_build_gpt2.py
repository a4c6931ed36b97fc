"""What is particular about GPT-2 and Falcon: names without a prefix, stored masks, a table of positions, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tolerances import chain_tolerance

from support.harness import EngineSteps
from support.tiny_models import make_variant
from tensorwright import build
from tensorwright.errors import CheckpointError, InvalidOptionError, UnsupportedModelError

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    return make_variant(tmp_path_factory.mktemp("gpt2") / "model", "gpt2")


def edit_config(path: Path, **changes) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def test_a_checkpoint_as_first_published(gpt2, tmp_path):
    """No prefix in the names, no tied head, and the causal mask of every layer stored as if it were a weight."""
    old = make_variant(tmp_path / "old", "gpt2")
    tensors = load_file(old / "model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 128, 128).tril()
    save_file(tensors, old / "model.safetensors", metadata={"format": "pt"})
    logits = []
    for model in (gpt2, old):
        build(model, tmp_path / f"{model.name}.engine", accuracy="none")
        logits.append(EngineSteps(tmp_path / f"{model.name}.engine").logits(IDS))
    assert (logits[0] == logits[1]).all()


def test_a_sequence_may_not_be_longer_than_the_table_of_positions(gpt2, tmp_path):
    result = build(gpt2, tmp_path / "whole", accuracy="none")
    assert result.config["limits"]["max_seq_len"] == 128
    short = build(gpt2, tmp_path / "short", max_seq_len=50, accuracy="none")
    assert short.config["limits"]["max_seq_len"] == 50
    with pytest.raises(InvalidOptionError, match="max_seq_len must be at most the model's 128 positions, not 129"):
        build(gpt2, tmp_path / "long", max_seq_len=129, accuracy="none")


def test_a_config_that_promises_more_positions_than_are_stored(tmp_path):
    path = make_variant(tmp_path / "m", "gpt2")
    edit_config(path, n_positions=256)
    with pytest.raises(CheckpointError, match=r"transformer.wpe.weight"):
        build(path, tmp_path / "engine", accuracy="none")


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("gpt2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn is refused; set it to false"),
    ],
)
def test_refusals_by_name(tmp_path, variant, changes, message):
    path = make_variant(tmp_path / "m", variant)
    edit_config(path, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        build(path, tmp_path / "engine", accuracy="none")


def test_the_accuracy_record_of_an_engine(gpt2, tmp_path):
    """The measurement walks the traced graph by itself: positions and LayerNorm included."""
    record = build(gpt2, tmp_path / "engine", dtype="bfloat16", accuracy="quick").config["accuracy"]
    bound = chain_tolerance("bfloat16", 128, 8, record["largest_reference_logit"])
    assert 0 < record["largest_logit_error"] <= bound
