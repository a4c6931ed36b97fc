"""`tensorwright serve`: what is wrong is told before an engine is loaded, in the form of the other commands."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from support.command_line import call
from support.fake_runtime import write_engine
from support.waiting import PATIENCE
from tensorwright.errors import InvalidOptionError
from tensorwright.installing import install
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.commands import serve
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.commands.serve import name_engines, read_keys
from tensorwright.runtime.serving.server import request_log
from tensorwright.runtime.serving.server.listen import Listen
from tensorwright.runtime.serving.server.options import ServerOptions


@pytest.fixture
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading one fails the test."""

    def refuse(self: LLM, *args: object, **keywords: object) -> None:
        pytest.fail("an engine was loaded")

    monkeypatch.setattr(LLM, "__init__", refuse)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--port", "70000"], "port must be from 0 to 65535, got 70000"),
        (["--host", "nowhere.invalid"], "host 'nowhere.invalid' must be an address of this machine"),
        (["--tls-cert", "a.pem"], "tls_cert and tls_key must be given together"),
        (["--tls-cert", "a.pem", "--tls-key", "b.pem"], "a.pem is no file"),
        (["--api-key", "two words"], "api_keys: a key must be"),
        (["--api-key-file", "/nonexistent"], "--api-key-file must be a readable text file"),
        (["--max-body-size", "lots"], "--max-body-size must be a positive number"),
        (["--max-body-memory", "lots"], "--max-body-memory must be a positive number"),
        (["--max-body-memory", "6MiB"], "max_body_memory must be at least twice max_body_size, or None, got 6291456"),
        (["--request-timeout", "0"], "request_timeout must be positive"),
        (["--cors-origin", "page.example"], 'cors_origins must be "*" or like'),
        (["--protect-metrics"], "protect_metrics needs api_keys"),
        (["--drain-timeout", "-1"], "drain_timeout must be 0 or more"),
        (["--header-timeout", "nan"], "header_timeout must be a positive number"),
        (["--max-connections", "0"], "max_connections must be a positive integer"),
        (["--max-connections-per-address", "0"], "max_connections_per_address must be a positive integer"),
        (["--max-requests-per-address", "0"], "max_requests_per_address must be a positive integer"),
        (["--max-requests-per-key", "0"], "max_requests_per_key must be a positive integer"),
        (["--max-requests-per-key", "1"], "max_requests_per_key needs api_keys"),
        (["--allowed-host", "http://a"], "allowed_hosts must be like"),
        (["--retry-after", "0"], "retry_after must be a positive integer"),
        (["--chat-template", "no/where.jinja"], "--chat-template must be a readable file of UTF-8 text"),
        (["--chat-template", "{empty}"], "must hold a Jinja template, and has neither {{ nor {% in it"),
        (["--chat-template", "{broken}"], "broken.jinja must be a Jinja template: line 2: "),
        (["--tool-parser", "gone"], "--tool-parser must be one of auto, none, harmony"),
        (["--tool-parser", "hermes,gone=mistral"], "--tool-parser must name an engine that is served (x), got 'gone'"),
        (["--reasoning-parser", "think,none"], "--reasoning-parser must have one value for all engines"),
        (["{bare}"], "bare has no tokenizer, so every request to it would be refused"),
        (["other/x"], "some/x and other/x would both be called 'x': write NAME=PATH"),
        (["x=other"], "some/x and other would both be called 'x': write NAME=PATH with another name for one of them"),
        (["a=some/x", "a=some/x"], "'a' is given to two engines, some/x and some/x: give each a name of its own"),
    ],
)
def test_wrong_options_are_told_before_an_engine_is_loaded(
    no_engines: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], told: str
) -> None:
    (tmp_path / "empty.jinja").write_text("nothing")
    (tmp_path / "broken.jinja").write_text("{{ messages }}\n{% if %}")
    write_engine(tmp_path / "bare", tokenizer=False)
    places = {"{empty}": "empty.jinja", "{broken}": "broken.jinja", "{bare}": "bare"}
    options = [str(tmp_path / places[option]) if option in places else option for option in options]
    code, out, err = call(capsys, "serve", "some/x", *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert told in err
    assert "two words" not in err


def test_an_engine_without_tokenizer_is_served_if_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[dict[str, Path]] = []
    monkeypatch.setattr(serve, "_load", lambda places, *others: loaded.append(places) or {})
    monkeypatch.setattr(serve, "_run", lambda *others: None)
    monkeypatch.setattr(request_log, "set_up_logging", lambda level: None)
    bare = write_engine(tmp_path / "bare", tokenizer=False)
    CliRunner().invoke(cli, ["serve", str(bare), "--port", "0", "--allow-no-tokenizer"], catch_exceptions=False)
    assert loaded == [{"bare": bare}]


@pytest.mark.parametrize(
    ("options", "warned"),
    [(["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key", "k"], False), (["--host", "localhost"], False)],
)
def test_an_address_that_all_reach_without_a_key_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: list[str], warned: bool
) -> None:
    monkeypatch.setattr(serve, "_load", lambda *others: {})
    monkeypatch.setattr(serve, "_run", lambda *others: None)
    monkeypatch.setattr(request_log, "set_up_logging", lambda level: None)
    CliRunner().invoke(cli, ["serve", "x", "--port", "0", *options], catch_exceptions=False)
    assert [record.message for record in caplog.records if "no key is set" in record.message] == (
        ["everybody who reaches this address is served: no key is set"] if warned else []
    )


def test_a_port_in_use_is_told_before_an_engine_is_loaded(no_engines: None, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = call(capsys, "serve", "x", "--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 must be free" in err


def test_a_certificate_that_is_none_is_told(
    no_engines: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a.pem"
    file.write_text("nothing")
    code, _, err = call(capsys, "serve", "x", "--tls-cert", str(file), "--tls-key", str(file))
    assert code == 2
    assert "must be a certificate and its key" in err


def test_a_missing_package_is_told(
    no_engines: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == "uvicorn" else object())
    code, _, err = call(capsys, "serve", "x")
    assert code == 2
    assert "serving needs uvicorn" in err
    assert install("serve") in err


def test_an_engine_that_is_none_ends_like_everywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "tensorwright.runtime.commands.cli", "serve", str(tmp_path), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")
    assert str(tmp_path) in ended.stderr


def test_engines_have_names() -> None:
    assert name_engines(["a/b", "c=d/e", "/x/f=g"]) == {"b": Path("a/b"), "c": Path("d/e"), "f=g": Path("/x/f=g")}
    assert list(name_engines(["."])) == [Path.cwd().name]
    for wrong in ("", "a=", " "):
        with pytest.raises(InvalidOptionError, match="PATH or NAME=PATH"):
            name_engines([wrong])


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nabc\n\n  def \n")
    assert read_keys(str(file)) == ("abc", "def")
    for content, told in (
        (b"", "at least one key"),
        (b"# no\n", "at least one"),
        (b"a\nb c\n", "key 2: a key must be"),
    ):
        file.write_bytes(content)
        with pytest.raises(InvalidOptionError, match=told):
            read_keys(str(file))
    file.write_bytes(b"\xff\xff")
    with pytest.raises(InvalidOptionError, match="readable text file"):
        read_keys(str(file))


def test_options_and_their_defaults_are_those_of_what_they_set() -> None:
    """Each option sets a field that exists; where the command has a default, the class has the same."""
    told = {
        option["name"]: option["default"] for option in cli.commands["serve"].to_info_dict(click.Context(cli))["params"]
    }
    for kind in (ServerOptions(), Listen()):
        for field in set(vars(kind)) - {"api_keys", "cors_origins", "allowed_hosts", "max_body_size"}:
            assert told[field] == getattr(kind, field), field
    keywords = LLM.__init__.__kwdefaults__
    fields = set(keywords) - {"max_prompt_logprob_rows"}
    for field in fields - {"max_queue_size", "guided_vocabulary", "watchdog"}:  # a server has defaults of its own
        assert told[field] == keywords[field], field


def test_help_names_every_option() -> None:
    shown = CliRunner().invoke(cli, ["serve", "--help"]).output
    for option in (
        "--api-key-file",
        "--cors-origin",
        "--max-queue-size",
        "--drain-timeout",
        "--tls-cert",
        "--log-level",
    ):
        assert option in shown
