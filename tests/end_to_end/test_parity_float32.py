"""fp32 engines give transformers' tokens and logits, on random models that can fail and on pico.

The tolerance is derived from the reference itself: transformers runs the same weights in float64 and in float32, and
ours may be no further from float64 than 4 times transformers' own float32 is (both sum the same products, in
different orders), plus one float32 rounding of the largest logit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.harness import EngineSteps, load_reference, logits_of, reference_choices, worst
from support.tiny_families import VARIANTS
from support.tiny_models import make_tiny
from tensorwright import LLM, SamplingParams, build

MODELS = {
    "llama": ("llama", {}),
    "llama-mha": VARIANTS["llama_mha"],
    "llama-gqa3-head40": (
        "llama",
        {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 40, "vocab_size": 257},
    ),
    "llama-gqa7-head128": (
        "llama",
        {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 128},
    ),
    "llama-mqa-bias": (
        "llama",
        {
            "hidden_size": 40,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "mlp_bias": True,
            "vocab_size": 99,
        },
    ),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", {}),
    "qwen2-gqa7-head64": (
        "qwen2",
        {"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896, "vocab_size": 1009},
    ),
}


def allowed(exact: np.ndarray, theirs: np.ndarray) -> float:
    return 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request, tmp_path_factory):
    """A random checkpoint and its engine."""
    family, overrides = MODELS[request.param]
    root = tmp_path_factory.mktemp(request.param)
    model = make_tiny(root / "model", family, seed=3, **overrides)
    build(model, root / "engine", dtype="float32", accuracy="none")
    return model, root / "engine"


def ids_of(vocab: int, length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()


@pytest.mark.computes(least="avx2")
def test_logits_equal_transformers(pair):
    model, engine = pair
    steps = EngineSteps(engine)
    vocab = steps.executor.facts()["vocab_size"]
    models = {dtype: load_reference(model, dtype) for dtype in (torch.float64, torch.float32)}
    for length in (1, 2, 33, 127):
        ids = ids_of(vocab, length, length)
        exact, theirs = (logits_of(loaded, ids, dtype) for dtype, loaded in models.items())
        assert worst(steps.logits(ids), exact) <= allowed(exact, theirs)


@pytest.mark.computes(least="avx2")
def test_greedy_tokens_equal_transformers(pair):
    model, engine = pair
    reference = load_reference(model, torch.float32)
    with LLM(str(engine), kv_cache_memory="64MiB", threads=1) as llm:
        prompts = [ids_of(reference.config.vocab_size, n, 50 + n) for n in (1, 5, 40)]
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0].token_ids
        assert len(answer) == 12
        assert answer == reference_choices(reference, prompt, answer)


PICO_PROMPTS = 100


def test_pico_over_100_prompts(pico_model, pico_engine_float32, held_out_lines):
    """Greedy tokens of 100 real prompts, and the logits of all their positions."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pico_model / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids[:24] for text in held_out_lines[:PICO_PROMPTS]]
    assert len(prompts) == PICO_PROMPTS
    exact_model = load_reference(pico_model, torch.float64)
    their_model = load_reference(pico_model, torch.float32)
    steps = EngineSteps(pico_engine_float32)
    with torch.inference_mode():
        exact = [exact_model(torch.tensor([ids])).logits[0].numpy() for ids in prompts]
        theirs = [their_model(torch.tensor([ids])).logits[0].double().numpy() for ids in prompts]
    # Over all prompts at once: how far their float32 is off in one of them is chance, and differs by processor.
    ours = np.concatenate([steps.logits(ids) for ids in prompts])
    assert worst(ours, np.concatenate(exact)) <= allowed(np.concatenate(exact), np.concatenate(theirs))
    with LLM(str(pico_engine_float32), kv_cache_memory="64MiB", threads=2) as llm:
        params = SamplingParams(max_tokens=10, temperature=0.0, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0].token_ids
        assert len(answer) == 10
        assert answer == reference_choices(their_model, prompt, answer)
