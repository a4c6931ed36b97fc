"""build-engine: what it prints, and its exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from support.tiny_models import make_variant
from tensorwright.builder.cli import main


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_variant(tmp_path_factory.mktemp("cli") / "model", "llama")


def run(*args) -> object:
    return CliRunner().invoke(main, [str(a) for a in args])


def test_builds_and_says_what(tiny, tmp_path):
    result = run(tiny, tmp_path / "engine", "--accuracy", "none")
    assert result.exit_code == 0, result.output
    assert "llama, 2 layers, vocabulary 101" in result.stdout
    assert "recognise_attention 2" in result.stdout
    assert (tmp_path / "engine" / "checksums.txt").exists()
    again = run(tiny, tmp_path / "engine", "--accuracy", "none")
    assert again.exit_code == 1
    assert "BuildError" in again.stderr
    assert "--force" in again.stderr
    assert run(tiny, tmp_path / "engine", "--accuracy", "none", "--force").exit_code == 0


def test_json(tiny, tmp_path):
    result = run(tiny, tmp_path / "engine", "--accuracy", "none", "--json")
    answer = json.loads(result.stdout)
    assert answer["config"]["model"]["model_type"] == "llama"
    assert answer["report"]["total_seconds"] > 0
    failed = run(tmp_path / "absent", tmp_path / "other", "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["error"] == "CheckpointError"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--target", "abacus"], "'abacus' is not 'cpu'"),
        (["--dtype", "int3"], "'int3' is not one of"),
        (["--max-seq-len", "1"], "1 is not in the range"),
        (["--max-seq-len", "4096"], "at most the model's 128 positions"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_wrong_command_lines(tiny, tmp_path, args, message):
    result = run(tiny, tmp_path / "engine", "--accuracy", "none", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    ("dump", "code", "message"),
    [("engine/dump", 2, "must lie outside OUT"), ("file/dump", 1, "cannot be made (Not a directory)")],
)
def test_a_dump_that_cannot_be_is_refused_first(tiny, tmp_path, monkeypatch, dump, code, message):
    monkeypatch.setattr("tensorwright.builder.cli.build", lambda *args, **options: pytest.fail("work had begun"))
    (tmp_path / "file").write_text("x")
    result = run(tiny, tmp_path / "engine", "--dump", tmp_path / dump)
    assert result.exit_code == code
    assert message in result.stderr
    assert not (tmp_path / "engine").exists()


def test_a_failure_is_one_message(tmp_path):
    result = run(tmp_path / "absent", tmp_path / "engine")
    assert result.exit_code == 1
    assert "CheckpointError" in result.stderr
    assert "no such directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_interrupt(tiny, tmp_path, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorwright.builder.cli.build", interrupt)
    result = run(tiny, tmp_path / "engine")
    assert result.exit_code == 130
    assert "nothing was left behind" in result.stderr


def test_help_shows_an_example():
    result = run("--help")
    assert result.exit_code == 0
    assert "build-engine models/pico out/pico" in result.stdout
