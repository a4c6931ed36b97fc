"""bf16 engines are no further from transformers' fp32 than transformers' own bf16 is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.harness import EngineSteps, load_reference
from support.tiny_models import make_tiny
from tensorwright import build

pytestmark = pytest.mark.computes(least="avx2")


def distances(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Root mean square distance of either from the fp32 logits, in their own units."""
    return (
        float(np.sqrt(np.mean((ours.astype(np.float64) - exact) ** 2))),
        float(np.sqrt(np.mean((theirs - exact) ** 2))),
    )


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {}),
        (
            "llama",
            {"hidden_size": 48, "head_dim": 40, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 257},
        ),
        ("qwen2", {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 448}),
        ("mistral", {}),
        ("qwen3", {}),
        ("olmo2", {}),
        ("granite", {}),
        ("phi3", {}),
        ("gemma", {}),
        ("gemma2", {}),
        ("gemma3_text", {}),
        ("olmo3", {}),
        ("flint", {}),
        ("gpt2", {}),
        ("gpt2", {"num_attention_heads": 6, "hidden_size": 96, "scale_attn_by_inverse_layer_idx": True}),
        ("falcon", {"num_attention_heads": 6, "hidden_size": 96}),
        ("minicpm3", {}),
        ("deepseek_v3", {}),
        ("mixtral", {}),
        ("olmoe", {}),
        ("qwen3_moe", {}),
        ("gpt_oss", {}),
        ("glm4_moe", {}),
        ("ernie4_5_moe", {}),
    ],
)
def test_random_models(tmp_path, family, overrides):
    model = make_tiny(tmp_path / "model", family, seed=11, dtype="bfloat16", **overrides)
    build(model, tmp_path / "engine", dtype="bfloat16", accuracy="none")
    check(
        model, EngineSteps(tmp_path / "engine"), [np.random.default_rng(n).integers(0, 99, n).tolist() for n in (7, 90)]
    )


def test_pico(pico_model, pico_engine, held_out_lines):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pico_model / "tokenizer.json"))
    check(pico_model, EngineSteps(pico_engine), [tokenizer.encode("\n".join(held_out_lines[:40])).ids[:400]])


def check(model, steps: EngineSteps, prompts: list[list[int]]) -> None:
    exact_model, their_model = load_reference(model, torch.float32), load_reference(model, torch.bfloat16)
    for ids in prompts:
        with torch.inference_mode():
            exact = exact_model(torch.tensor([ids])).logits[0].double().numpy()
            theirs = their_model(torch.tensor([ids])).logits[0].double().numpy()
        our_distance, their_distance = distances(steps.logits(ids), theirs, exact)
        assert our_distance <= their_distance, f"{our_distance} > {their_distance} at {len(ids)} tokens"
