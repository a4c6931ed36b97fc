"""The training script: its data, its schedule, and a whole tiny run that can be resumed."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from click.testing import CliRunner

from tensorwright.models import train_pico
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.train_pico import Recipe, batches, library_files, rate, read_texts


def test_library_files():
    files = library_files()
    assert files == sorted(files)
    assert any(f.name == "textwrap.py" for f in files)
    assert not any("site-packages" in f.parts for f in files)


def test_every_fiftieth_file_is_held_out():
    training, held_out = read_texts(150)
    assert 1 <= len(held_out) <= 3
    assert len(training) > 40 * len(held_out)
    assert not set(training) & set(held_out)


def test_rate_warms_up_and_ends_at_zero():
    recipe = Recipe()
    assert rate(recipe.warmup, recipe) == pytest.approx(recipe.peak_rate, rel=0.01)
    assert 0 < rate(0, recipe) < rate(0.01, recipe) < recipe.peak_rate
    assert rate(1, recipe) == pytest.approx(0, abs=1e-12)
    assert rate(2, recipe) == rate(1, recipe)


def test_batches_are_the_same_from_any_step():
    tokens = torch.arange(5000)
    recipe = Recipe(sequence=16, batch=3)
    first = [window for window, _ in zip(batches(tokens, recipe, 0), range(4), strict=False)]
    resumed = next(batches(tokens, recipe, 3))
    assert torch.equal(first[3], resumed)
    assert not torch.equal(first[0], first[1])
    assert first[0].shape == (3, 17)


@pytest.mark.slow  # trains a tokenizer
def test_a_tiny_run_and_its_resumption(tmp_path, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(train_pico.time, "perf_counter", lambda: float(next(clock)))  # every step takes one second
    monkeypatch.setattr(train_pico, "Recipe", functools.partial(Recipe, sequence=64, batch=2))
    monkeypatch.setattr(train_pico, "VOCAB_SIZE", 512)
    short = sorted((file.stat().st_size, file) for file in library_files() if file.stat().st_size > 1000)
    monkeypatch.setattr(train_pico, "library_files", lambda: [file for _, file in short])

    def run(seconds: int, *more: str) -> str:
        args = ["--which", "tiny", "--minutes", str(seconds / 60), "--files", "50", "--out", str(tmp_path / "m"), *more]
        result = CliRunner().invoke(train_pico.main, args, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "2 steps; held-out perplexity per token" in run(2)
    assert "5 steps; held-out perplexity per token" in run(5, "--resume")
    checkpoint = open_checkpoint(tmp_path / "m")
    assert checkpoint.native_dtype == "bfloat16"
    assert checkpoint.eos_token_ids == [0]
