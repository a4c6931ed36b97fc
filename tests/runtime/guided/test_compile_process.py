"""The process that compiles grammars first: whom it serves, when it goes, and what its death means to requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import hostile_grammars as hostile
from support.grammar_process import begin_compiling, children, engine
from support.places import TESTS
from support.waiting import PATIENCE, wait_until
from tensorwright import GuidedDecodingParams
from tensorwright.errors import EngineStoppedError, InvalidRequestError, TemporarilyUnavailableError
from tensorwright.runtime.base import other_python
from tensorwright.runtime.guided import child_link, compile_process, grammar
from tensorwright.runtime.guided.reader import VocabularyReader
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary


def test_a_killed_child_is_replaced(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a grammar, and while it compiles one: that one is tried again, once."""
    first = known.compiler.pid
    os.kill(first, signal.SIGKILL)
    assert known.compile(GuidedDecodingParams(regex="x+")).size > 0
    second = known.compiler.pid
    assert second not in (None, first)
    errors: list[Exception] = []
    waiting = begin_compiling(known, GuidedDecodingParams(**hostile.ENDLESS), errors)
    kill_at_work(known, lambda child: child == second)
    kill_at_work(known, lambda child: child not in (None, second))
    waiting.join()
    assert isinstance(errors[0], TemporarilyUnavailableError)
    assert "was killed twice" in str(errors[0])


def kill_at_work(known: GuidedVocabulary, is_meant: Callable[[int | None], bool]) -> None:
    """Once the child that is meant compiles something."""

    def at_work() -> int | None:
        child = known.compiler.pid
        return child if is_meant(child) and children(child) else None

    child = wait_until(at_work, "a child that compiles")
    assert child is not None
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("why", [OSError("no more processes"), ValueError("its last words"), TimeoutError("timed out")])
def test_a_child_that_does_not_start_again_is_no_requests_fault(
    known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: Exception
) -> None:
    """Whether it was killed before the grammar came, or while it compiled it. Clients are not told why: that may name
    files."""

    def none(*given: Any) -> Any:
        raise why

    for dies in (known.compiler._child.end, lambda: None):  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            dies()
            patch.setattr(child_link.Child, "ask", lambda *given: none_left())
            patch.setattr(child_link, "Child", none)
            with pytest.raises(TemporarilyUnavailableError, match="does not start; try again later") as raised:
                known.compile(GuidedDecodingParams(regex="y+"))
            assert str(why) not in str(raised.value)
            assert str(raised.value.__cause__) == str(why)
            assert f"does not start: {why}" in caplog.text
        known.compile(GuidedDecodingParams(regex="z+"))


def none_left() -> Any:
    raise child_link.Gone


def test_nobody_waits_long_for_a_child_that_starts_again(
    known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known grammar needs none; a new one is refused in time, and the start goes on meanwhile."""
    start, go_on, begun = child_link.Child, threading.Event(), []

    def slow(*given: Any) -> Any:
        begun.append(threading.current_thread().name)
        assert go_on.wait(PATIENCE)
        return start(*given)

    familiar = GuidedDecodingParams(regex="k+")
    grammar_of_it = known.compile(familiar)
    known.compiler._child.end()  # type: ignore[union-attr]
    monkeypatch.setattr(child_link, "Child", slow)
    monkeypatch.setattr(compile_process, "LIMIT_S", 0.3)
    try:
        for regex in ("l+", "m+"):
            with pytest.raises(TemporarilyUnavailableError, match="is still being started; try again later"):
                known.compile(GuidedDecodingParams(regex=regex))
            assert known.compile(familiar) is grammar_of_it
    finally:
        go_on.set()
    known.compiler.start()
    assert begun == ["tensorwright-grammar-process"]
    monkeypatch.undo()
    assert known.compile(GuidedDecodingParams(regex="l+")).size > 0


def test_a_child_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is ended, and who asks later tries a new one."""
    module, started = tmp_path / "says_nothing.py", []
    module.write_text("import time\ntime.sleep(600)\n")
    start = subprocess.Popen

    def noted(*given: Any, **more: Any) -> Any:
        started.append(start(*given, **more))
        return started[-1]

    monkeypatch.syspath_prepend(str(tmp_path))
    process = compile_process.CompileProcess(spelled())
    with monkeypatch.context() as patch:
        patch.setattr(child_link, "MODULE", "says_nothing")
        patch.setattr(child_link, "START_S", 0.2)
        patch.setattr(subprocess, "Popen", noted)
        with pytest.raises(TemporarilyUnavailableError, match="does not start"):
            process.start()
    assert [each.returncode for each in started] == [-signal.SIGKILL]
    process.start()
    assert Path(f"/proc/{process.pid}").exists()


def spelled() -> child_link.SpelledVocabulary:
    return child_link.SpelledVocabulary(array("I", [1, 1]).tobytes(), b"ab", (1,))


def test_without_a_thread_a_child_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    process = compile_process.CompileProcess(spelled())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TemporarilyUnavailableError, match="does not start"):
            process.start()
    process.start()


def test_engines_of_one_vocabulary_share_a_child(known: GuidedVocabulary) -> None:
    assert GuidedVocabulary(engine()).compiler is known.compiler
    assert GuidedVocabulary(engine(3)).compiler is not known.compiler


def test_the_child_goes_with_the_last_engine() -> None:
    reader = VocabularyReader(engine(7))
    child = reader.get().compiler.pid
    assert Path(f"/proc/{child}").exists()
    reader.close()
    assert not Path(f"/proc/{child}").exists()
    with pytest.raises(EngineStoppedError):
        reader.get()


def test_closing_while_a_grammar_is_compiled() -> None:
    """Nobody waits for it. Who asked hears of its end, and then the child goes."""
    reader = VocabularyReader(engine(11))
    errors: list[Exception] = []
    child = reader.get().compiler.pid
    asking = begin_compiling(reader.get(), GuidedDecodingParams(**hostile.ENDLESS), errors)
    (fork,) = wait_until(lambda: children(child))
    reader.close()
    assert asking.is_alive()
    os.kill(fork, signal.SIGKILL)
    asking.join()
    assert isinstance(errors[0], InvalidRequestError)
    assert "cannot be followed" in str(errors[0])
    errors.clear()
    del asking
    wait_until(lambda: not Path(f"/proc/{child}").exists())


PARENT = """
import os, sys, threading
from support import hostile_grammars as hostile
from tensorwright import GuidedDecodingParams
from support.grammar_process import engine
from tensorwright.runtime.guided import compile_process
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
compile_process.LIMIT_S = 600.0
known = GuidedVocabulary(engine())
slow = GuidedDecodingParams(**hostile.ENDLESS)
threading.Thread(target=lambda: known.compile(slow), daemon=True).start()
if os.fork() == 0:  # as data loaders are: it has the parent's sockets too
    sys.stdin.read()
    os._exit(0)
print(known.compiler.pid, flush=True)
sys.stdin.read()
"""


def test_the_child_goes_when_its_parent_is_killed() -> None:
    """With the fork that compiles, and though another fork of the parent lives on."""
    folders = [str(TESTS)]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )  # fmt: skip
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        child = int(parent.stdout.readline())
        wait_until(lambda: children(child))
        forks = children(child)
        parent.kill()
        parent.wait()
        for process in (child, *forks):
            wait_until(lambda: gone(process))  # noqa: B023


def test_the_child_goes_when_its_parent_was_killed_before_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though somebody else holds the parent's socket."""
    header = child_link.SpelledVocabulary.header
    monkeypatch.setattr(child_link.SpelledVocabulary, "header", lambda self: header(self) | {"parent": os.getppid()})
    orphan = child_link.Child(spelled())
    wait_until(lambda: not orphan.runs)


def test_a_fork_finds_the_locks_free() -> None:
    """Whatever other threads of its parent did just then."""
    for lock in (compile_process._sharing, grammar._starting):
        with lock:
            process = os.fork()
            if process == 0:
                signal.alarm(int(PATIENCE))  # it would wait for ever
                with lock:
                    os._exit(0)
        assert os.waitpid(process, 0)[1] == 0


def gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True
    return re.search(r"\) (\w)", state)[1] == "Z"  # type: ignore[index]


def test_a_vocabulary_that_ends_its_reader_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "reads_badly.py"
    module.write_text("import os, sys\nprint('explicit panic', file=sys.stderr)\nos.abort()\n")
    monkeypatch.setattr(child_link, "MODULE", "reads_badly")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidRequestError, match="status -6; its last words: explicit panic"):
        GuidedVocabulary(engine(9))


@pytest.mark.parametrize("name", ["python3", "triton_python_backend_stub", ""])
def test_which_python_runs_the_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    if name:
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / name) if name else "")
    found = other_python.interpreter()
    assert Path(found).name.startswith("python")
    assert (Path(found).parent == tmp_path) == (name == "python3")
