"""Training EAGLE-3 heads: what they learn at each place is the target's next token, and an engine is built of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from support.tiny_models import make_tiny
from tensorwright import LLM, SamplingParams, build
from tensorwright.models import train_eagle3, train_pico
from tensorwright.models.train_eagle3 import PLACES, Trained, likely_tokens, loss_of, places, windows_of
from tensorwright.models.train_pico import Recipe, train_for


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("target") / "model", "llama", num_hidden_layers=4)


def load(target: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    model.requires_grad_(False)
    return model


def test_each_place_is_compared_with_the_target_behind_it(target: Path) -> None:
    model = load(target)
    trained = Trained(model, torch.arange(0, 101, 2))
    tokens = torch.randint(0, 101, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        said = model(tokens).logits.float()
    seen = list(places(trained, model, tokens))
    assert len(seen) == PLACES
    for place, (ours, theirs, there) in enumerate(seen):
        assert ours.shape == (2, 12, 51)
        assert there.tolist() == [True] * (11 - place) + [False] * (place + 1)
        assert torch.equal(theirs[:, there], said[:, place + 1 :])


def test_the_likely_tokens_are_those_that_a_text_has_most_often() -> None:
    text = torch.tensor([5, 5, 5, 2, 2, 9, 9, 9, 9, 1])
    assert likely_tokens(text, 20, 3).tolist() == [2, 5, 9]


def test_heads_learn_and_an_engine_is_built_of_them(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = load(target)
    text = torch.arange(101).repeat(40)
    trained = Trained(model, torch.arange(101))
    window = text[:64].view(1, 64)
    before = float(loss_of(trained, model, window))
    seconds = iter(range(10_000))
    monkeypatch.setattr(train_pico.time, "perf_counter", lambda: float(next(seconds)))  # a step takes a second
    recipe = Recipe(sequence=32, batch=4, peak_rate=1e-2)
    assert train_for(trained, windows_of([text], recipe), partial(loss_of, trained, model), recipe, 40.0) == 39
    monkeypatch.undo()
    assert float(loss_of(trained, model, window)) < before - 0.1  # the target is nearly uniform
    train_eagle3.save(trained, model, tmp_path / "heads")
    engine = build(target, tmp_path / "engine", accuracy="none", heads=tmp_path / "heads").path
    with LLM(engine, speculative="heads,tokens=3", kv_cache_memory="1MiB") as llm:
        llm.generate(
            {"prompt_token_ids": list(range(20))}, SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
        )
        stats = llm.get_stats()
    assert stats["draft_tokens"] > 20
