"""How commands end: what the system refuses, interrupts in disguise, and warnings, in the form of all errors."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

from tensorwright.command import run_command
from tensorwright.errors import TensorwrightWarning

Capture = pytest.CaptureFixture[str]


def end(work: Any, *arguments: str) -> int:
    """The exit code of a command that does `work`."""

    @click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def command() -> None:
        work()

    with pytest.raises(SystemExit) as exit_info:
        run_command(command, arguments, "test")
    return int(exit_info.value.code or 0)


@pytest.mark.parametrize("echo", [click.echo, lambda text: print(text, end="")], ids=["at once", "at the end"])
def test_full_stdout(monkeypatch: pytest.MonkeyPatch, capsys: Capture, echo: Any) -> None:
    """/dev/full refuses every byte, as a full disk does. Python alone shows a traceback and ends with 120."""
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert end(lambda: echo("text"), "--json") == 1
        full.flush()  # nothing is left that could fail again
    error = capsys.readouterr().err
    assert error == (
        "error: stdout cannot be written to (No space left on device); free its disk, or send the output elsewhere\n"
    )


def test_no_stdout_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert end(lambda: click.echo("text")) == 0


@pytest.mark.parametrize("echo", [lambda: click.echo("text"), lambda: print("text")], ids=["at once", "at the end"])
def test_a_reader_that_has_seen_enough(monkeypatch: pytest.MonkeyPatch, capsys: Capture, echo: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert end(echo) == 1
    assert capsys.readouterr().err == ""


def test_what_the_system_refuses_names_the_place(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert end((tmp_path / "file" / "x").read_text) == 1
    error = capsys.readouterr().err
    assert error == (
        f"error: {tmp_path}/file/x: cannot be used (Not a directory); free it or its disk, or choose another place\n"
    )
    assert "Errno" not in error


def test_an_interrupt_that_a_compiled_module_made_an_import_error_of(capsys: Capture) -> None:
    def import_it() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    assert end(import_it) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_warnings_are_lines_and_come_once(capsys: Capture) -> None:
    def warn() -> None:
        for _ in range(3):
            warnings.warn("too many threads", TensorwrightWarning, stacklevel=2)

    assert end(warn) == 0
    assert capsys.readouterr().err == "warning: too many threads\n"
