"""`tensorwright doctor ENGINE --report`: what it tells besides `--json`, also of a run that fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.tools.doctor import report


def ask(*arguments: str, code: int = 0) -> dict[str, Any]:
    ran = CliRunner().invoke(cli, ["doctor", *arguments, "--report"], catch_exceptions=False)
    assert ran.exit_code == code
    return json.loads(ran.stdout)


def test_an_engine_runs_and_its_tokens_are_told(toy_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TENSORWRIGHT_API_KEY", "do not tell")
    monkeypatch.setenv("GREETING", "nor this")
    told = ask(str(toy_engine))
    assert set(told) == {"machine", "nvidia", "packages", "engine", "environment", "tensorrt", "run"}
    assert len(told["run"]["tokens"]) == report.TOKENS
    assert told["run"]["seconds"] > 0
    assert told["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert told["environment"]["TENSORWRIGHT_API_KEY"] == "(set)"
    assert "GREETING" not in told["environment"]
    assert set(told["tensorrt"]) == {"tensorrt", "tensorrt-rtx"}
    for package in told["tensorrt"].values():
        assert (package["version"] is None) == (package["error"] is not None)
        assert package["missing"] == []


def test_without_an_engine_nothing_runs() -> None:
    assert ask()["run"] is None


def test_a_run_that_fails_is_told_with_its_traceback(toy_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr("tensorwright.runtime.api.llm.LLM", fail)
    run = ask(str(toy_engine), code=1)["run"]
    assert run["error"] == "RuntimeError: the device is on fire"
    assert "fail" in "\n".join(run["traceback"])


def test_what_is_no_engine_fails_in_both_ways(tmp_path: Path) -> None:
    told = ask(str(tmp_path), code=1)
    assert not told["engine"]["runs"]
    assert "not an engine" in told["run"]["error"]
