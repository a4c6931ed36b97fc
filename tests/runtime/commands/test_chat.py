"""`tensorwright chat`: a conversation over an engine that says the prompt again, so answers show what was sent."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from support.command_line import call
from support.fake_runtime import FakeEngine, fake_module, write_engine
from tensorwright import LLM
from tensorwright.errors import InvalidRequestError
from tensorwright.options.chat import TEMPERATURE
from tensorwright.runtime.chat_formats.events import TextDelta
from tensorwright.runtime.commands.chat.conversation import Conversation
from tensorwright.runtime.commands.chat.printer import Printer
from tensorwright.runtime.commands.chat.reader import TerminalReader, history_file
from tensorwright.runtime.commands.chat.session import Session
from tensorwright.runtime.commands.chat.settings import Settings
from tensorwright.runtime.engine import native

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}>"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    return str(write_engine(tmp_path / "engine", more={"chat_template.jinja": TEMPLATE, "tokenizer_config.json": "{}"}))


class Typed:
    """A user who says these texts; an exception is raised in place of a text."""

    def __init__(self, *texts: str | BaseException):
        self.texts = list(texts)

    def read(self) -> str | None:
        text = self.texts.pop(0) if self.texts else None
        if isinstance(text, BaseException):
            raise text
        return text


def talk(engine: str, *texts: str | BaseException, tells: bool = True, **asked: object) -> Session:
    with LLM(engine) as llm:
        settings = Settings({"stop": [">"], "max_tokens": 60} | asked, {})
        session = Session(llm, Typed(*texts), settings, Conversation(), tells)
        session.run()
    return session


def test_lines_of_a_pipe(engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for text, answers in (
        ("hi\n", "u:hi;\n"),
        ("hi", "u:hi;\n"),
        ('"""a\n b\n"""\n//c\n\n', "u:a\n b;\nu:a\n b;a:u:a\n b;;u:/c;\n"),
        ("/system be kind\nhi\n", "s:be kind;u:hi;\n"),
        ("/bye\nhi\n", ""),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        told = call(capsys, "chat", engine, "--stop", ">", "--max-tokens", "60", "--temperature", "0")
        assert told == (0, answers, ""), text


def test_wrong_lines_of_a_pipe(
    engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("/nope\n"))
    code, out, err = call(capsys, "chat", engine)
    assert (code, out) == (2, "")
    assert "there is no /nope; /help shows all" in err
    plain = str(write_engine(tmp_path / "plain"))
    assert "has no chat template" in call(capsys, "chat", plain)[2]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    code, _, err = call(capsys, "chat", engine)
    assert (code, "must be UTF-8" in err) == (2, True)
    assert "nowhere cannot be read" in call(capsys, "chat", engine, "--load", "nowhere")[2]


def test_commands(engine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    session = talk(
        engine, "a", "/regen", "/undo", "b", "/system x", "/system", f"/save {file}", "/clear", f"/load {file}",
        "/history", "/stats", "/set top-k 3", "/set", "/help",
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert out.startswith("u:a;\nu:a;\nu:b;\nx\nuser: b\nassistant: u:b;\n")
    assert "tokens in the prompt, 0 of them known from before, 5 in the answer" in out
    assert "top_k                3" in out
    assert all(f"/{name}" in out for name in Session.COMMANDS)
    assert "2 messages" in err
    assert json.loads(file.read_text()) == {
        "messages": [
            {"role": "system", "content": "x"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "u:b;"},
        ]
    }
    assert session._conversation.system == "x"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("/regen", "nothing was asked yet"),
        ("/undo", "nothing was asked yet"),
        ("/stats", "nothing was answered yet"),
        ("/save", "/save needs the name of a file"),
        ("/save /nowhere/file", "/save: /nowhere/file cannot be written"),
        ("/load nowhere", "cannot be read as a conversation"),
        ("/set n 3", "there is no setting 'n'"),
        ("/set temperature warm", "temperature must be a number"),
        ("/set temperature -1", "temperature"),
        ("/set skip_special_tokens 7", "must be true or false"),
        ("a" * 5000, "prompt"),
    ],
)
def test_a_wrong_line_ends_nothing(engine: str, capsys: pytest.CaptureFixture[str], line: str, fault: str) -> None:
    session = talk(engine, line, "hi")
    out, err = capsys.readouterr()
    assert fault in err
    assert out == "u:hi;\n"
    assert len(session._conversation.messages) == 2


def test_ctrl_c(engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between lines it tells how to leave. During an answer it stops that, and what came of it is kept."""
    from tensorwright.runtime.commands.chat import session as module

    class Interrupted(module.RequestNews):
        def __iter__(self):
            yield next(super().__iter__())
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "RequestNews", Interrupted)
    session = talk(engine, KeyboardInterrupt(), "hi" * 20, stop=[])
    out, err = capsys.readouterr()
    assert "Ctrl-D or /bye ends the chat" in err
    assert "(stopped)" in err
    kept = session._conversation.messages[1]["content"]
    assert ("u:" + "hi" * 20).startswith(kept[:4])
    assert out.strip().startswith("u:")
    assert [message["role"] for message in session._conversation.messages] == ["user", "assistant"]


def test_the_oldest_messages_go_when_the_context_is_full(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    with LLM(engine) as llm:
        room = llm.max_seq_len
        session = Session(llm, Typed(), Settings({"max_tokens": 1}, {}), Conversation(), True)
        for _ in range(4):
            session.ask("y" * (room // 3))
    assert session._conversation.forgotten == 4
    assert len(session._conversation.messages) == 8
    assert "messages are sent no more" in capsys.readouterr().err
    session._conversation.take_back()
    session._conversation.take_back()
    assert session._conversation.forgotten <= len(session._conversation.messages)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("[]", 'it needs a list "messages"'),
        ("{", "cannot be read as a conversation"),
        ('{"messages": [{"role": "user"}]}', "must have a"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "must be of the user"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "the last message must be the assistant's"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]}', "of the assistant"),
    ],
)
def test_files_that_are_no_conversation(tmp_path: Path, content: str, fault: str) -> None:
    file = tmp_path / "talk.json"
    file.write_text(content)
    with pytest.raises(InvalidRequestError, match=fault) as told:
        Conversation.load(file)
    assert str(file) in str(told.value)


def test_a_question_that_is_too_long_leaves_nothing_out(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    session = talk(engine, "a", "b", "y" * 5000, "c")
    assert session._conversation.forgotten == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("u:a;")


THINKING = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}<think>\n"


def test_thoughts_are_shown_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    template = "{# </think> #}" + THINKING + "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    engine = str(write_engine(tmp_path / "e", more={"chat_template.jinja": template, "tokenizer_config.json": "{}"}))
    session = talk(engine, "why</think>so", stop=["o;"], max_tokens=14)
    assert session._conversation.messages[1]["content"].strip() == "s"
    assert capsys.readouterr().out.startswith("u:why\n")
    session = talk(engine, "/think low", "/think", "/think default", "/think", "/think much")
    out, err = capsys.readouterr()
    assert out == "low\ndefault\n"
    assert "reasoning_effort must be one of" in err


def test_a_model_does_not_command_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printer = Printer(True)
    printer.show([TextDelta("a\x1b]52;c;eA==\x07\r\x9bb\n\té")])
    assert capsys.readouterr().out == "a␛]52;c;eA==␇␍�b\n\té"
    assert "\x1b]52" in printer.answer


def test_settings_are_the_users_over_the_models() -> None:
    assert Settings({}, {}).params.temperature == TEMPERATURE
    assert Settings({}, {"temperature": 0.3}).params.temperature == 0.3
    settings = Settings({"temperature": 0.1, "seed": None}, {"temperature": 0.3, "top_p": 0.5})
    assert (settings.params.temperature, settings.params.top_p, settings.params.max_tokens) == (0.1, 0.5, None)
    settings.change("temperature", "default")
    settings.change("max-tokens", "7")
    assert (settings.params.temperature, settings.params.max_tokens) == (0.3, 7)
    settings.change("max_tokens", "default")
    assert settings.params.max_tokens is None
    for name in Settings({}, {}).shown():
        settings.change(name.split()[0], "default")
    assert settings.params == Settings({}, {"temperature": 0.3, "top_p": 0.5}).params


def test_the_history_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lines = iter(['"""one', 'two"""', "three"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    reader = TerminalReader(history_file())
    assert [reader.read(), reader.read()] == ["one\ntwo", "three"]
    assert history_file().read_text().split("\n")[-3:] == ["one two", "three", ""]
    assert os.stat(history_file()).st_mode & 0o077 == 0
    monkeypatch.setattr("builtins.input", lambda prompt: (_ for _ in ()).throw(EOFError))
    assert reader.read() is None
