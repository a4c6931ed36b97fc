"""The survey's judgement of bfloat16 engines: near ties of routers do not decide it, and more rounding turns it red."""

from __future__ import annotations

import pytest

from support import survey
from support.survey import WORKS, WRONG, make_model, try_bfloat16

pytestmark = pytest.mark.computes(least="avx2")


@pytest.mark.parametrize("name", ["deepseek_v3", "mamba"])
def test_chance_does_not_decide(tmp_path, name):
    """By the sum over the rows of the first prompt, both were further from the exact logits than transformers."""
    model = make_model(name, tmp_path / "model")
    assert try_bfloat16(model, tmp_path) == WORKS


def test_more_rounding_turns_red(tmp_path, monkeypatch):
    """An engine with int8 weights is further from the exact logits than transformers' bfloat16."""
    honest = survey.build
    monkeypatch.setattr(survey, "build", lambda *args, **options: honest(*args, quantize="int8", **options))
    model = make_model("deepseek_v3", tmp_path / "model")
    assert try_bfloat16(model, tmp_path) == WRONG
