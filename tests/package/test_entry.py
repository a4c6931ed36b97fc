"""Ctrl-C while a command still imports, or has come to its end, is the usual error: no traceback, exit code 130.

What is interrupted is the import of the n-th module after the entry was reached, so no test depends on time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import click
import pytest

from support.waiting import PATIENCE
from tensorwright import interrupts
from tensorwright.command import _as_json, run_command

INTERRUPTED_AT = """
import os, signal, sys
from tensorwright import entry

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
seen = 0

def count(event, arguments):
    global seen
    seen += event == "import"
    if event == "import" and seen == int(number):
        os.kill(os.getpid(), signal.SIGINT)

_, number, command, *arguments = sys.argv
sys.argv = [command, *arguments]
sys.addaudithook(count)
getattr(entry, command.replace("-", "_"))()
"""


def interrupted_at(number: int, *command: str) -> subprocess.CompletedProcess[str]:
    """A command that gets SIGINT when it imports its `number`-th module."""
    return subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, str(number), *command], capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.mark.parametrize("number", [1, 40, 80, 140])
def test_an_interrupt_while_importing(number):
    done = interrupted_at(number, "tensorwright", "run", "nowhere", "--prompt", "x")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_an_interrupt_while_the_builder_is_imported():
    done = interrupted_at(250, "build-engine", "nowhere", "out", "--json")
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
    assert json.loads(done.stdout) == {"error": "KeyboardInterrupt", "message": "interrupted", "exit_code": 130}


def test_the_words_are_those_of_every_error():
    assert (
        _as_json("KeyboardInterrupt", interrupts.INTERRUPTED, interrupts.EXIT_INTERRUPTED) + "\n" == interrupts.AS_JSON
    )


@pytest.fixture
def as_a_command(hears_interrupts, monkeypatch):
    """This process, as one that began as a command; what it was afterwards."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    interrupts.begin()


def test_only_work_is_interrupted_by_an_exception(as_a_command):
    handlers = [signal.getsignal(signal.SIGINT)]
    interrupts.work()
    handlers.append(signal.getsignal(signal.SIGINT))
    with interrupts.nothing_begun:
        handlers.append(signal.getsignal(signal.SIGINT))
    handlers.append(signal.getsignal(signal.SIGINT))
    assert handlers == [interrupts.end_at_once, signal.default_int_handler] * 2


def test_an_interrupted_command_ends_without_waiting_for_threads(as_a_command, monkeypatch, capsys):
    """Whatever still computes, and whatever Python would tear down."""
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)

    @click.command()
    def command():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        run_command(command, [], "test")
    assert ended == [130]
    assert capsys.readouterr().err.endswith("error: interrupted\n")


def test_elsewhere_no_handler_changes():
    """LLM, build and pytest are not a command's process."""
    before = signal.getsignal(signal.SIGINT)
    with interrupts.nothing_begun:
        assert signal.getsignal(signal.SIGINT) is before
    interrupts.work()
    assert signal.getsignal(signal.SIGINT) is before


def test_what_is_ignored_stays_ignored(monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    interrupts.begin()
    assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN


def test_an_interrupt_that_python_loses_comes_again(as_a_command):
    class Lost:
        def __del__(self):
            raise KeyboardInterrupt

    interrupts.work()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        Lost()
        time.sleep(60)


def test_an_interrupt_comes_again_only_where_it_is_not_lost(as_a_command, monkeypatch):
    """On a busy machine the main thread may still be in the hook when the moment is over. What is raised in the hook is
    lost for good."""
    start = threading.Thread.start

    def start_and_be_late(thread):
        start(thread)
        time.sleep(20 * interrupts.RETRY_S)

    monkeypatch.setattr(threading.Thread, "start", start_and_be_late)
    interrupts.work()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        sys.unraisablehook(SimpleNamespace(exc_type=KeyboardInterrupt))
        time.sleep(60)


def test_other_lost_errors_are_shown(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "__unraisablehook__", shown.append)
    interrupts.hear_again(SimpleNamespace(exc_type=ValueError))
    assert len(shown) == 1
