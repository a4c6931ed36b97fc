"""Training Medusa heads: each learns the target's token so many places on, and an engine is built of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from support.tiny_models import make_tiny
from tensorwright import LLM, SamplingParams, build
from tensorwright.models import train_pico
from tensorwright.models.train_eagle3 import windows_of
from tensorwright.models.train_medusa import agreement, loss_of, made_for, said, save
from tensorwright.models.train_pico import Recipe, train_for


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("target") / "model", "llama", num_hidden_layers=2)


def load(target: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    model.requires_grad_(False)
    return model


def test_each_head_is_compared_with_the_target_behind_it(target: Path) -> None:
    model = load(target)
    heads = made_for(model, 3)
    tokens = torch.randint(0, 101, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens).logits.float()
    ours, theirs = said(heads, model, tokens)
    assert ours.shape == theirs.shape == (3, 2, 12, 101)
    for place in range(3):
        assert torch.equal(theirs[place, :, : 11 - place], logits[:, place + 1 :])
        assert torch.equal(ours[place], logits)  # they begin as the target's own output


def test_heads_learn_and_an_engine_is_built_of_them(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = load(target)
    heads = made_for(model, 3)
    text = torch.arange(101).repeat(40)
    window = text[:64].view(1, 64)
    before = float(loss_of(heads, model, window))
    seconds = iter(range(10_000))
    monkeypatch.setattr(train_pico.time, "perf_counter", lambda: float(next(seconds)))  # a step takes a second
    recipe = Recipe(sequence=32, batch=4, peak_rate=1e-2)
    assert train_for(heads, windows_of([text], recipe), partial(loss_of, heads, model), recipe, 60) > 50
    assert float(loss_of(heads, model, window)) < before - 0.02
    assert all(0 <= share <= 1 for share in agreement(heads, model, window))
    save(heads, tmp_path / "heads")
    engine = build(target, tmp_path / "engine", accuracy="none", heads=tmp_path / "heads", dtype="float32")
    assert engine.config["heads"]["kind"] == "medusa"
    with LLM(engine.path, speculative="heads,tokens=3", kv_cache_memory="1MiB") as llm:
        (output,) = llm.generate(
            [{"prompt_token_ids": list(range(20))}], SamplingParams(max_tokens=10, temperature=0.0)
        )
        assert len(output.outputs[0].token_ids) > 0
        assert llm.get_stats()["draft_tokens"] > 0
