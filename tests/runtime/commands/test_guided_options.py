"""The options of `tensorwright run` that say what the output must look like."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from support.command_line import call
from support.fake_runtime import FakeEngine, fake_module, write_engine
from tensorwright.options.request import GUIDED
from tensorwright.runtime.engine import native
from tensorwright.runtime.guided.params import GuidedDecodingParams

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    (tmp_path / "schema.json").write_text('{"enum": ["öff", "on"]}', encoding="utf-8")
    (tmp_path / "number.ebnf").write_text("root ::= [0-9]{2}", encoding="utf-8")
    (tmp_path / "bad.bin").write_bytes(b"\xff\xfe")
    monkeypatch.chdir(tmp_path)
    return str(write_engine(tmp_path / "engine"))


def test_every_parameter_has_an_option() -> None:
    """But `frame`, which the grammars of tools and thinking are made with."""
    fields = {field.name for field in dataclasses.fields(GuidedDecodingParams)}
    assert fields - {"frame"} == {option.name for option in GUIDED}


@pytest.mark.parametrize(
    ("arguments", "prompt", "text"),
    [
        (["--json-schema", "schema.json"], '"ö', '"öff"'),
        (["--json-object"], "{}", "{}"),
        (["--json-object", "--whitespace-pattern", " ?"], "{ }", "{ }"),
        (["--regex", "a+b"], "aab\x00", "aab"),
        (["--choice", "yes", "--choice", "no"], "no", "no"),
        (["--grammar", "number.ebnf"], "12\x00", "12"),
        ([], "ab", "ab" * 4),
    ],
    ids=str,
)
def test_each_shapes_the_output(engine: str, capsys: Capture, arguments: list[str], prompt: str, text: str) -> None:
    assert call(capsys, "run", engine, "--prompt", prompt, "--max-tokens", "8", *arguments) == (0, text + "\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json-object", "--regex", "a"], "one of them at most: --json-object and --regex"),
        (["--regex", "a", "--whitespace-pattern", ""], "whitespace_pattern must come with json or json_object"),
        (["--json-object", "--whitespace-pattern", "x"], "whitespace_pattern must admit JSON's blanks alone"),
        (["--choice", ""], "choice must be a list of texts, none empty"),
        (["--regex", "("], "guided_decoding: regex cannot be followed"),
        (["--json-schema", "number.ebnf"], "json must be a JSON schema"),
        (["--grammar", "bad.bin"], "must be UTF-8 text"),
        (["--grammar", "missing"], "missing"),
    ],
    ids=str,
)
def test_refused(engine: str, capsys: Capture, arguments: list[str], message: str) -> None:
    code, _, err = call(capsys, "run", engine, "--prompt", "ab", *arguments)
    assert code == 2
    assert message in err
