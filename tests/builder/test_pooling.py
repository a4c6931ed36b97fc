"""Which checkpoints say by the name of their architecture that they embed."""

from __future__ import annotations

import pytest

from tensorwright.builder.pooling import is_bare


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("Qwen3Model", True),
        ("GPT2Model", True),
        ("GPT2LMHeadModel", False),
        ("GPT2DoubleHeadsModel", False),
        ("LlamaForCausalLM", False),
    ],
)
def test_a_bare_model_has_no_head_in_its_name(name: str, bare: bool) -> None:
    assert is_bare({"architectures": [name]}) == bare


@pytest.mark.parametrize(
    "config", [{}, {"architectures": None}, {"architectures": []}, {"architectures": "Qwen3Model"}]
)
def test_a_config_without_names_says_nothing(config: dict[str, object]) -> None:
    assert not is_bare(config)
