"""Messages name the closest partial match: so every pass with a pattern must be asked for its own."""

from __future__ import annotations

import sys

from tensorwright.passes.pipeline import PIPELINE
from tensorwright.passes.rewriting.explain import RECOGNISERS


def test_every_pattern_of_a_pass_is_asked() -> None:
    """insert_kv_cache reports what came closest to its own pattern itself."""
    modules = [sys.modules[step.run.__module__] for phase in PIPELINE for step in phase.steps]
    with_pattern = {module for module in modules if hasattr(module, "PATTERN") and hasattr(module, "check")}
    assert {module.__name__.rpartition(".")[2] for module in with_pattern - set(RECOGNISERS)} == {"insert_kv_cache"}
    assert set(RECOGNISERS) <= with_pattern
