"""Graphs of the tiny models at stage "cached", each traced once per run, for the emitters' tests."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.tiny_models import make_variant
from tensorwright.ir.graph import Graph
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.text import print_graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint

MAX_SEQ_LEN = 128


@dataclass
class Case:
    """A checkpoint of tests/support/tiny_models.py, and the text of its graph."""

    checkpoint: Checkpoint
    text: str

    @property
    def graph(self) -> Graph:
        """A new copy, in float32."""
        return parse_graph(self.text)


def cached_case(factory: pytest.TempPathFactory, variant: str, **overrides: object) -> Case:
    """The variant, with these values of its config changed."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cached-graphs"
    shared.mkdir(exist_ok=True)
    name = "-".join([variant, *(f"{key}={value}" for key, value in overrides.items())])
    model, text = shared / name, shared / f"{name}.txt"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not text.exists():
            make_variant(model, variant, seed=3, **overrides)
            text.write_text(_graph_text(model), encoding="utf-8")
    return Case(open_checkpoint(model), text.read_text(encoding="utf-8"))


def _graph_text(model: Path) -> str:
    from tensorwright.builder.trace.export import trace
    from tensorwright.passes.pipeline import PIPELINE, run_pipeline

    traced = trace(open_checkpoint(model), dtype="float32", max_seq_len=MAX_SEQ_LEN)
    return print_graph(run_pipeline(traced, pipeline=PIPELINE[:-1]).cached_graph)
