"""Real models for the passes' pinned counts: tiny random checkpoints, traced and rewritten once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pytest

from support.published import publish
from support.tiny_models import make_variant
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.trace.export import trace
from tensorwright.ir import Graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import PassReport, run_pipeline


@dataclass
class Rewritten:
    """A traced model and what the pipeline makes of it."""

    checkpoint: Checkpoint
    traced: Graph

    @cached_property
    def report(self) -> PassReport:
        return run_pipeline(self.traced)

    @cached_property
    def compared(self) -> PassReport:
        """The same, with the numbers compared over each pass."""
        return run_pipeline(self.traced, verify=True, weights=checkpoint_weights(self.checkpoint))

    def count(self, name: str) -> int:
        return self.report.counts[name]


@pytest.fixture(scope="session")
def rewritten(tmp_path_factory: pytest.TempPathFactory):
    """rewritten(variant, dtype): each pair is traced once."""
    known: dict[tuple[str, str], Rewritten] = {}

    def get(variant: str, dtype: str = "float32") -> Rewritten:
        if (variant, dtype) not in known:
            folder = tmp_path_factory.mktemp(variant)
            # As published, which other tests trace too: so that all have one trace (support/known_traces.py).
            checkpoint = open_checkpoint(publish(make_variant(folder / "m", variant), folder / "published"))
            traced = trace(checkpoint, dtype=dtype, max_seq_len=128)
            known[variant, dtype] = Rewritten(checkpoint, traced)
        return known[variant, dtype]

    return get


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def model(request, rewritten) -> Rewritten:
    """Two layers each, in float32."""
    return rewritten(request.param)
