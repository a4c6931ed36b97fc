"""Rotary embeddings of three coordinates: for text they are replaced by plain ones that give the same bits."""

from __future__ import annotations

import pytest
import torch
from transformers import Ernie4_5_VLMoeTextConfig, HunYuanVLTextConfig, Qwen2_5_VLTextConfig, Qwen3VLTextConfig
from transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe import Ernie4_5_VLMoeTextRotaryEmbedding
from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLDenseV1Attention, HunYuanVLRotaryEmbedding
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from tensorwright.builder.trace.fix_mrope import TextRotary, fix_mrope
from tensorwright.builder.trace.text_part import TextPart
from tensorwright.errors import UnsupportedModelError

MODULES = {
    "halves": (Qwen2_5_VLRotaryEmbedding, Qwen2_5_VLTextConfig, [2, 2, 4]),
    "sections by turns": (Qwen3VLTextRotaryEmbedding, Qwen3VLTextConfig, [4, 2, 2]),
    "four coordinates": (HunYuanVLRotaryEmbedding, HunYuanVLTextConfig, [2, 2, 2, 2]),
    "rows and columns apart": (Ernie4_5_VLMoeTextRotaryEmbedding, Ernie4_5_VLMoeTextConfig, [3, 3, 2]),
}


def rotary(kind):
    module, config, sections = MODULES[kind]
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "rope_parameters": rope}
    return torch.nn.Sequential(module(config(**sizes)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MODULES)
def test_a_plain_rotary_embedding_gives_the_same(kind, dtype):
    model = rotary(kind)
    x, positions = torch.zeros(1, dtype=dtype), torch.arange(3000)[None] * 7
    axes = max(3, len(model[0].mrope_section))
    wanted = model[0](x, positions.expand(axes, 1, -1))
    fix_mrope(model, TextPart(None))
    assert isinstance(model[0], TextRotary)
    for given in (model[0](x, positions), model[0](x, positions.expand(axes, 1, -1))):
        for ours, theirs in zip(given, wanted, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


def test_attention_that_knows_the_sections_stays():
    """It turns by the tables that it is given."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2, 2]}
    config = HunYuanVLTextConfig(hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters=rope)
    model = torch.nn.Sequential(HunYuanVLDenseV1Attention(config, 0), HunYuanVLRotaryEmbedding(config))
    fix_mrope(model, TextPart(None))
    assert type(model[0]) is HunYuanVLDenseV1Attention
    assert isinstance(model[1], TextRotary)
    assert model[1].mrope_section == [2, 2, 2, 2]


def test_the_order_of_rows_and_columns_matters():
    """The frequencies as they are stored would turn other pairs."""
    model = rotary("rows and columns apart")
    stored = model[0].inv_freq.clone()
    fix_mrope(model, TextPart(None))
    assert not torch.equal(model[0].inv_freq, stored)
    assert torch.equal(model[0].inv_freq, stored.sort(descending=True).values)


def test_an_order_that_is_not_known(monkeypatch):
    original = Ernie4_5_VLMoeTextRotaryEmbedding.recomposition_frequencies
    monkeypatch.setattr(
        Ernie4_5_VLMoeTextRotaryEmbedding, "recomposition_frequencies", lambda self, freq: original(self, freq).flip(-1)
    )
    with pytest.raises(UnsupportedModelError, match=r"TextRotaryEmbedding.* has an mrope of its own kind"):
        fix_mrope(rotary("rows and columns apart"), TextPart(None))
