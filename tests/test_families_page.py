"""docs/families.md is what docs/make_families.py makes of the record and the code, and the record is what happens."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from support.survey import REFUSED, SURVEY, WORKS, try_family

ROOT = Path(__file__).resolve().parent.parent
RECORD = json.loads((ROOT / "docs" / "families.json").read_text(encoding="utf-8"))

TRIED = (
    "cohere",
    "nemotron",
    "smollm3",
    "mixtral",
    "mamba",
    "t5",
    "falcon",
    "llama with dynamic rope",
    "apertus",
)
"""The three families that no pass was written for, and refusals of each kind."""


def make_families():
    spec = importlib.util.spec_from_file_location("make_families", ROOT / "docs" / "make_families.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_record_and_the_code() -> None:
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert page == make_families().page(RECORD), "run docs/make_families.py, and commit what it writes"


def test_the_record_has_every_family_of_the_survey() -> None:
    assert set(RECORD["families"]) == set(SURVEY), "run docs/make_families.py, and commit what it writes"


def test_every_family_works_or_is_refused() -> None:
    faults = {name: o["status"] for name, o in RECORD["families"].items() if o["status"] not in (WORKS, REFUSED)}
    assert not faults


def test_no_refusal_shows_what_torch_said() -> None:
    raw = ("torch.", "TORCH_LOGS", "meta!", "FakeTensor", "L['", "KeyError", "AttributeError")
    shown = {n: w for n, o in RECORD["families"].items() for w in raw if w in o["message"]}
    assert not shown


@pytest.mark.parametrize("model_type", TRIED)
def test_the_record_is_what_happens(tmp_path: Path, model_type: str) -> None:
    recorded = {**RECORD["families"][model_type], "bfloat16": ""}
    assert make_families().summary(try_family(model_type, tmp_path)) == recorded
