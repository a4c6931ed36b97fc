"""draft_features: what the numpy definition means. Its C++ runs in tests/builder/test_draft_heads.py, and what the
reader of plans refuses of it is in tests/cpp/plan_test.cc."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.ir.verify import FEATURES
from tensorwright.plugins.draft_features import op

pytestmark = pytest.mark.computes


def test_gives_what_the_step_carries_whatever_the_model_left() -> None:
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    for target in (None, np.zeros((3, 2), np.float32)):
        (y,) = op.reference([target, features], {"logits": 4, "hidden": 5}, "float32")
        assert y.tolist() == features.tolist()


def test_the_record_names_the_input_and_the_buffers_of_the_results() -> None:
    assert [operand.name for operand in op.INSTRUCTION.ins] == ["target"]
    assert op.INSTRUCTION.ints == ("logits", "hidden")
    assert [operand.name for operand in op.INSTRUCTION.operands if operand.kind == "metadata"] == [FEATURES]
