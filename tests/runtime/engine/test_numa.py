"""Placed threads and weights: answers are the same, and who could gain from them is told."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tensorwright import LLM, SamplingParams
from tensorwright.errors import TensorwrightWarning
from tensorwright.runtime.engine import native

PARAMS = SamplingParams(max_tokens=8, temperature=0.0, logprobs=1)


def test_answers_do_not_depend_on_the_placement(pico_engine: Path) -> None:
    answers = []
    for numa in ("off", "auto", "split", "interleave"):
        with LLM(pico_engine, load="copy", numa=numa, threads=2, kv_cache_memory="4MiB") as llm:
            output = llm.generate(["def read(path):", "import os"], PARAMS)
            answers.append([(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in output])
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(
    ("options", "nodes", "told"),
    [
        ({}, 2, True),
        ({}, 1, False),
        ({"numa": "off"}, 2, False),
        ({"load": "copy"}, 2, False),
        ({"threads": 1}, 2, False),  # not every core has a thread
    ],
)
def test_mapped_weights_on_several_nodes_are_told_of(
    pico_engine: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], nodes: int, told: bool
) -> None:
    monkeypatch.setattr(native, "topology", lambda: {"nodes": nodes, "cores": 2})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TensorwrightWarning)
        with LLM(pico_engine, **({"threads": 2, "kv_cache_memory": "4MiB"} | options)):  # type: ignore[arg-type]
            pass
    said = [str(w.message) for w in caught if "NUMA" in str(w.message)]
    assert len(said) == told
    assert all(said_once.startswith("this machine has 2 NUMA nodes") for said_once in said)
