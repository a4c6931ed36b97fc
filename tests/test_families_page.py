"""docs/families.md is what docs/make_families.py makes of the record and the code, and the record is what happens."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from support.modules import load_module
from support.survey import REFUSED, WORKS, surveyed, try_family
from support.survey_configs import tiny_config
from support.survey_types import HELD_OUT, field

ROOT = Path(__file__).resolve().parent.parent
RECORD = json.loads((ROOT / "docs" / "families.json").read_text(encoding="utf-8"))

TRIED = (
    "cohere",
    "nemotron",
    "smollm3",
    "mixtral",
    "t5",
    "llama with dynamic rope",
)
"""The three families that no pass was written for, and refusals of each kind."""


def make_families():
    return load_module(ROOT / "docs" / "make_families.py")


def test_the_page_is_that_of_the_record_and_the_code() -> None:
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert page == make_families().page(RECORD), "run docs/make_families.py, and commit what it writes"


def test_the_record_has_no_others_than_the_survey() -> None:
    assert set(RECORD["families"]) == set(surveyed()), "run docs/make_families.py, and commit what it writes"


def test_every_type_of_transformers_is_somewhere() -> None:
    """Tried, of one text class with a tried one, or no decoder: in one of these, and what is held out in none."""
    named = [*field().tried, *field().same, *field().left_out]
    assert len(named) == len(set(named))
    assert not HELD_OUT & set(named)
    causal = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    assert causal - HELD_OUT <= set(named)
    assert set(field().same.values()) <= set(field().tried)


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "glm4v", "mllama"])
def test_a_tiny_config_has_a_layer_of_each_kind(name: str) -> None:
    text = tiny_config(name).get_text_config()
    kinds = getattr(CONFIG_MAPPING[name]().get_text_config(), "layer_types", None) or ["full_attention"]
    assert set(getattr(text, "layer_types", None) or ["full_attention"]) == set(kinds)
    assert 2 <= text.num_hidden_layers <= 4
    assert text.hidden_size == 32


def test_what_crashes_or_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    families = make_families()
    monkeypatch.setattr(families, "PROCESSES", multiprocessing.get_context("fork"))
    monkeypatch.setattr(families, "try_one", lambda *_: os._exit(9))
    assert families.outcome_of("llama") == ("llama", families.fault("Crash", "the process ended with 9"))
    monkeypatch.setattr(families, "LIMIT", 0.1)
    monkeypatch.setattr(families, "try_one", lambda *_: time.sleep(60))
    assert families.outcome_of("llama") == ("llama", families.fault("TimeLimit", "not done after 0.1 seconds"))


UNMADE = {
    "kosmos-2": "its class takes no text alone",
}
"""Types of which the survey makes no tiny model that computes, and why."""


def test_every_family_works_or_is_refused() -> None:
    others = {name: o["status"] for name, o in RECORD["families"].items() if o["status"] not in (WORKS, REFUSED)}
    assert others == dict.fromkeys(UNMADE, "unmade")


def test_no_refusal_shows_what_torch_said() -> None:
    raw = ("torch.", "TORCH_LOGS", "meta!", "FakeTensor", "L['", "KeyError", "AttributeError")
    shown = {n: w for n, o in RECORD["families"].items() for w in raw if w in o["message"]}
    assert not shown


@pytest.mark.parametrize("model_type", TRIED)
def test_the_record_is_what_happens(tmp_path: Path, model_type: str) -> None:
    recorded = {**RECORD["families"][model_type], "bfloat16": ""}
    assert make_families().summary(try_family(model_type, tmp_path)) == recorded
