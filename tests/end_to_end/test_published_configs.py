"""Engines from the config.json of published models, shrunk in size: float32 and bfloat16, against transformers.

All are read here as a build reads them. Engines are built of those that say what test_families.py does not try; with
TENSORWRIGHT_PUBLISHED=all, of every one, which takes some minutes. The bounds are those of test_parity_float32.py and
test_parity_bfloat16.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from support.harness import EngineSteps, worst
from support.model_numbers import different
from support.published_configs import PUBLISHED, VOCABULARY, make_published, published_config, shrink, where_read
from support.survey import WORKS, logits, try_bfloat16
from tensorwright import build
from tensorwright.builder.trace.load_model import load_model
from tensorwright.builder.trace.weight_names import find_weights
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.registry import expected_counts

LENGTH = 40  # more than a window, and than the positions before a scaling

BUILT = (
    "AFM-4.5B", "ERNIE-4.5-0.3B-PT", "EXAONE-4.0-32B", "Phi-4-mini-instruct", "gemma-3-270m", "internlm3-8b-instruct",
    "phi-2",
)  # fmt: skip
"""Families that test_families.py lacks, or combinations of features that no tiny model has."""

CHANGED = {
    "gemma-3-270m": {"rope_local_base_freq": 1e3},
    "phi-2": {"partial_rotary_factor": 0.5},
}
"""What turns the comparison red, if the engine is built from it and the model is not."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made: dict[str, tuple[torch.nn.Module, Path]] = {}

    def get(name: str) -> tuple[torch.nn.Module, Path]:
        if name not in made:
            root = tmp_path_factory.mktemp(name)
            made[name] = make_published(name, root / "model"), root
        return made[name]

    return get


def ids() -> list[int]:
    return np.random.default_rng(1).integers(3, VOCABULARY, LENGTH).tolist()


def off_and_allowed(model: torch.nn.Module, engine: Path) -> tuple[float, float]:
    """How far the logits of a float32 engine are from the exact ones of `model`, and how far they may be."""
    theirs, exact = (logits(model.to(dtype), ids()) for dtype in (torch.float32, torch.float64))
    rounding = float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
    return worst(EngineSteps(engine).logits(ids()), exact), 4 * worst(theirs, exact) + rounding


def test_there_are_enough() -> None:
    assert len(PUBLISHED) >= 40
    assert len({published_config(name)["model_type"] for name in PUBLISHED}) >= 30
    read = [where for where in map(where_read, PUBLISHED) if where is not None]
    assert len(read) >= 36
    assert all(re.match(r"https://github.com/[^/]+/[^/]+/blob/[0-9a-f]{40}/|a note on GitHub", where) for where in read)


@pytest.mark.parametrize("name", PUBLISHED)
def test_only_sizes_are_changed(name):
    published, small = published_config(name), shrink(published_config(name))
    assert published.keys() == small.keys()
    for key, value in small.items():
        assert type(value) is type(published[key])
        assert isinstance(value, int | list | dict) or value == published[key]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_build_reads_the_model_that_transformers_reads(models, name):
    """The same class, the same numbers in every module, and all weights found: then the trace is the same too."""
    model, root = models(name)
    checkpoint = open_checkpoint(root / "model")
    read = load_model(checkpoint, "float32")
    assert different(read, model.float()) == []
    assert find_weights(read, checkpoint).expressions.keys() >= dict(read.named_parameters()).keys()
    assert expected_counts(checkpoint.config)


@pytest.mark.computes
@pytest.mark.parametrize(
    "name", [n for n in PUBLISHED if n in BUILT or os.environ.get("TENSORWRIGHT_PUBLISHED") == "all"]
)
def test_engines_of_a_published_config(models, name):
    model, root = models(name)
    build(root / "model", root / "engine", dtype="float32", max_seq_len=128, accuracy="none")
    off, allowed = off_and_allowed(model, root / "engine")
    assert off <= allowed
    assert try_bfloat16(model, root, VOCABULARY, checkpoint=root / "model") == WORKS


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_config_turns_red(models, tmp_path, name):
    model, _ = models(name)
    make_published(name, tmp_path / "model", **CHANGED[name])
    build(tmp_path / "model", tmp_path / "engine", dtype="float32", max_seq_len=128, accuracy="none")
    off, allowed = off_and_allowed(model, tmp_path / "engine")
    assert off > 10 * allowed
