"""Indexers are taken out where they pick every position, and refused where they would not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from support.harness import EngineSteps, load_reference, worst
from support.tiny_models import make_variant
from tensorwright import build
from tensorwright.builder.trace.export import trace
from tensorwright.builder.trace.fix_indexers import ConstantMask, EveryPosition, find_indexers, fix_indexers
from tensorwright.builder.trace.left_out import PICKS_ALL
from tensorwright.errors import UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint

VARIANTS = ("deepseek_v32_dense", "glm_moe_dsa_experts")
INDEXERS = {"deepseek_v32_dense": 2, "glm_moe_dsa_experts": 1}
"""How many layers have one of their own."""
REACH = 40


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(variant, tmp_path_factory) -> Path:
    return make_variant(tmp_path_factory.mktemp(variant) / "m", variant, index_topk=REACH)


@pytest.fixture(scope="module")
def engine(model, tmp_path_factory) -> Path:
    return build(model, tmp_path_factory.mktemp("e") / "e", dtype="float32", max_seq_len=REACH, accuracy="none").path


def test_an_engine_picks_every_position_and_says_what_it_left_out(variant, model, engine):
    graph = trace(open_checkpoint(model), dtype="float32", max_seq_len=REACH)
    names = {name for node in graph.find("weight") for name in node.attrs["expr"].refs()}
    stored = [name for name in open_checkpoint(model).names if ".indexer." in name]
    assert stored
    assert not names & set(stored)
    left = graph.facts.left_out["model.layers.*.self_attn.indexer"]
    assert left["reason"] == PICKS_ALL
    assert left["tensors"] == len(stored) == 5 * INDEXERS[variant]
    assert left["bytes"] == sum(open_checkpoint(model).stored_bytes(name) for name in stored)
    assert graph.facts.layers == 2


def test_fewer_picked_positions_give_other_logits(model, engine):
    """The engine equals transformers as long as an indexer picks every position, and no longer."""
    ids = np.random.default_rng(3).integers(0, 97, REACH).tolist()
    ours = EngineSteps(engine).logits(ids)
    exact, theirs = (_logits(model, ids, dtype, REACH) for dtype in (torch.float64, torch.float32))
    allowed = 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
    assert worst(ours, exact) <= allowed
    fewer = _logits(model, ids, torch.float64, REACH - 1)
    assert worst(ours[:-1], fewer[:-1]) <= allowed
    assert worst(ours[-1:], fewer[-1:]) > 10 * allowed


def _logits(model: Path, ids: list[int], dtype: torch.dtype, picked: int) -> np.ndarray:
    reference = load_reference(model, dtype)
    for indexer in find_indexers(reference).values():
        indexer.index_topk = picked
    with torch.inference_mode():
        return reference(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def test_longer_sequences_are_refused(model, tmp_path):
    with pytest.raises(
        UnsupportedModelError, match=rf"max_seq_len must be at most {REACH}, not 41 \(--max-seq-len {REACH}\)"
    ):
        trace(open_checkpoint(model), dtype="float32", max_seq_len=REACH + 1)
    with pytest.raises(UnsupportedModelError, match=rf"picks {REACH} positions.*not 128"):
        build(model, tmp_path / "e", accuracy="none")


class Indexed(nn.Module):
    """A model whose one part has `fields`."""

    def __init__(self, layer_types: list[str], **fields: int):
        super().__init__()
        self.part = nn.Identity()
        vars(self.part).update(fields)
        self.config = type("Config", (), {"model_type": "made", "layer_types": layer_types})
        self.config.get_text_config = lambda: self.config


@pytest.mark.parametrize("more", ["index_kpool", "compress_rate"])
def test_an_indexer_of_another_kind_is_refused(more):
    fix_indexers(Indexed(["indexed_attention"], index_topk=8), 8)
    with pytest.raises(UnsupportedModelError, match=rf"part \(Identity\) picks .* \({more}, index_topk\)"):
        fix_indexers(Indexed(["indexed_attention"], index_topk=8, **{more: 4}), 8)


def test_blocks_of_positions_are_picked_whole():
    made = Indexed(["some_sparse"], topk_blocks=3, block_size=4)
    made.part.build_block_mask = lambda *args: pytest.fail("a mask of blocks was made")
    with pytest.raises(UnsupportedModelError, match=r"part picks 12 positions .* must be at most 12, not 13"):
        fix_indexers(made, 13)
    assert fix_indexers(made, 12) == ["part"]
    mask = torch.zeros(1, 1, 3, 3)
    assert made.part.build_block_mask(made.part(torch.ones(1)), mask, 3, torch.float32, "cpu", None) is mask
    with pytest.raises(UnsupportedModelError, match="what an indexer picks is used by masked_fill"):
        made.part(torch.ones(1)).masked_fill(mask < 0, 1)
    with pytest.raises(UnsupportedModelError, match="what an indexer picks is used by build_block_mask"):
        made.part.build_block_mask(torch.zeros(1), mask, 3)


def test_a_kind_without_its_method_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"part \(Identity\) has no build_block_mask"):
        fix_indexers(Indexed(["some_sparse"], topk_blocks=3, block_size=4), 12)


def test_layers_without_the_indexer_that_they_are_said_to_have_are_refused():
    assert fix_indexers(Indexed(["full_attention"]), 8) == []
    with pytest.raises(UnsupportedModelError, match=r"made has no indexer for its layers of type indexed_attention"):
        fix_indexers(Indexed(["indexed_attention"]), 8)


def test_what_an_indexer_picks_may_only_mask_scores():
    scores, every = torch.ones(1, 1, 3, 3), EveryPosition()
    unpicked = every.new_ones((1, 3, 3), dtype=torch.bool).scatter(-1, every.long(), False).unsqueeze(1)
    assert scores.masked_fill(unpicked, 0.0) is scores
    assert (scores.bool() & ~unpicked).all()
    for other in (
        lambda: scores.masked_fill(~unpicked, 0.0),
        lambda: scores.bool() & unpicked,
        lambda: scores + unpicked,
        lambda: scores * ConstantMask(True),
        lambda: torch.where(unpicked, scores, scores),
        lambda: every.ge(0),
        lambda: every.new_ones((1, 3, 3), dtype=torch.float32),
        lambda: every.new_ones((1, 3, 3), dtype=torch.bool).scatter(-1, every, True),
        lambda: unpicked.float(),
    ):
        with pytest.raises(UnsupportedModelError, match="what an indexer picks is used by"):
            other()
