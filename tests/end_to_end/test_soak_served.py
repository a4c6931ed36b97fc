"""The short form of benchmarks/soak.py: a real server, everything at once, with faults; and the same with a server that
is wrong, which the soak must see."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT

sys.path[:0] = [str(ROOT / "benchmarks")]

import soak  # noqa: E402
from soak_page import summary  # noqa: E402

PLANTS = Path(__file__).resolve().parent.parent / "support" / "soak_plants.py"


def run(engine: Path, *words: str) -> dict[str, Any]:
    report = soak.soak(soak.options(["--engine", str(engine), *words]))
    print(summary(report))  # pytest shows it if something does not hold
    return report


@pytest.mark.slow
def test_nothing_is_lost_left_over_or_changed(pico_engine_float32: Path) -> None:
    report = run(pico_engine_float32, "--requests", "200", "--compare", "40")
    assert report["wrong"] == []
    assert report["compared"] >= 20
    assert report["engines_replaced"] >= 1
    injected = (
        "crowded", "held still for 1 s", "disk full", "file cut off", "file damaged", "file removed",
        "adapter unloaded",
    )  # fmt: skip
    assert all(report["faults"].get(name) for name in injected), report["faults"]
    assert report["manners"]["leaves"] > 0


@pytest.mark.slow
def test_planted_faults_are_seen(pico_engine_float32: Path) -> None:
    report = run(pico_engine_float32, "--requests", "120", "--compare", "24", "--plant", str(PLANTS))
    wrong = "\n".join(report["wrong"])
    for sign in ("differs: ", "memory grew by", "files grew by", "status 500", "planted", "HTTP requests by status"):
        assert sign in wrong, f"the soak did not see what would say {sign!r}"
