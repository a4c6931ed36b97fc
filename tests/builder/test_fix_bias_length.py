"""Masks that a model makes itself are larger than any sequence of the trace, and keep what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.survey import make_model
from tensorwright.builder.trace.export import trace
from tensorwright.builder.trace.fix_bias_length import fix_bias_length
from tensorwright.builder.trace.load_model import load_model
from tensorwright.errors import UnsupportedModelError
from tensorwright.models.checkpoint import open_checkpoint


def masks(path: Path, *lengths: int) -> list[torch.Tensor]:
    model = load_model(open_checkpoint(path), "float32")
    if lengths:
        fix_bias_length(model, *lengths)
    return [module.bias for name, module in model.named_modules() if name.endswith("attn.attention")]


def test_masks_are_enlarged(tmp_path):
    make_model("gpt_neo", tmp_path)
    before, after, enough = masks(tmp_path), masks(tmp_path, 128, 130), masks(tmp_path, 100, 127)
    assert [mask.shape for mask in after] == [(1, 1, 131, 131)] * 2
    assert all(torch.equal(new[:, :, :128, :128], old) for old, new in zip(before, after, strict=True))
    assert all(torch.equal(new, old) for old, new in zip(before, enough, strict=True))
    assert not torch.equal(before[0], before[1])


def test_a_sequence_past_the_mask_is_refused(tmp_path):
    make_model("gpt_neo", tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"a mask of 128 positions \(bias\); max_seq_len must be at most"):
        trace(open_checkpoint(tmp_path), dtype="float32", max_seq_len=129)
