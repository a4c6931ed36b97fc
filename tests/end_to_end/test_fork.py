"""An LLM in a fork of the process that made it: a typed error at once, an end without a hang, no harm to the parent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import PATIENCE

SCRIPT = Path(__file__).parent.parent / "support" / "forked_llm.py"
FORKED = "ForkedEngineError"
TOLD = {
    "generate": FORKED,
    "generate_list": FORKED,
    "chat": FORKED,
    "generate_async": FORKED,
    "await": FORKED,
    "guided": FORKED,
    "stats": FORKED,
    "profile": FORKED,
    "abort": FORKED,
    "load_adapter": FORKED,
    "unload_adapter": FORKED,
    "observer": FORKED,
    "handle_result": FORKED,
    "handle_done": FORKED,
    "handle_iterate": FORKED,
    "handle_await": FORKED,
    "handle_iterate_async": FORKED,
    "handle_abort": FORKED,
    "running": "False",
    "shutdown": "None",
    "delete": "None",
    "serve": "503 engine_stopped",
    "multiprocessing": "0",
    "own": "4 tokens",
}


@pytest.fixture(scope="module")
def outcomes(pico_engine: Path) -> dict[str, str]:
    """What the children said, by what they did; nothing of what one hung in."""
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(pico_engine)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return {**json.loads(run.stdout), "stderr": run.stderr}


@pytest.mark.parametrize("act", TOLD)
def test_in_a_fork(outcomes: dict[str, str], act: str) -> None:
    assert outcomes.get(act) == TOLD[act]


def test_the_message_says_what_to_do(outcomes: dict[str, str]) -> None:
    assert "make the LLM after the fork, or start processes with multiprocessing's spawn" in outcomes["message"]


def test_the_parent_goes_on(outcomes: dict[str, str]) -> None:
    assert outcomes["parent"] == outcomes["before"]
    assert outcomes["waiting"] == "4 tokens"
    assert outcomes["stderr"] == ""
