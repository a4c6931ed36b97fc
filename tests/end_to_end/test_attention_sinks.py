"""Sinks over several splits of the positions: joined once, whatever the chunks and threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.harness import EngineSteps, reference_logits, worst
from support.tiny_models import make_variant
from tensorwright import build

pytestmark = pytest.mark.computes

LENGTH = 1100  # three splits of 512


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp("flint")
    longer = {"max_position_embeddings": 1200, "sliding_window": 1150}
    path = make_variant(root / "model", "flint", seed=5, **longer)
    build(path, root / "engine", dtype="float32", accuracy="none")
    return path, root / "engine"


def test_logits_over_three_splits(model):
    path, engine = model
    ids = np.random.default_rng(1).integers(0, 97, LENGTH).tolist()
    steps = EngineSteps(engine)
    whole = steps.logits(ids)
    exact = reference_logits(path, ids, torch.float64)
    theirs = reference_logits(path, ids, torch.float32)
    rounding = float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
    assert worst(whole, exact) <= 4 * worst(theirs, exact) + rounding
    # The last steps decode one sequence: on several threads its splits are computed apart.
    for threads, chunks in ((1, [500, 24, 500, 70, 1, 1, 1, 1, 1, 1]), (3, [1090] + [1] * 10), (2, [LENGTH])):
        again = EngineSteps(engine, threads=threads).logits(ids, chunks=chunks)
        np.testing.assert_array_equal(again.view(np.uint32), whole.view(np.uint32))
