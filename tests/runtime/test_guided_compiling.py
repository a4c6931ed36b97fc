"""Grammars in the process that compiles them first: what ends there, and how it is answered."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import hostile_grammars as hostile
from support.fake_runtime import byte_tokenizer, wait_until
from tensorwright import GuidedDecodingParams
from tensorwright.errors import EngineStoppedError, InvalidRequestError, QueueFullError
from tensorwright.runtime.guided import (
    compile_child,
    compile_process,
    compile_queue,
    grammar,
    other_python,
    translation,
    vocabulary,
)
from tensorwright.runtime.guided.compile_queue import CompileQueue
from tensorwright.runtime.guided.reader import VocabularyReader
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
from tensorwright.runtime.tokenizer import Tokenizer

DIGITS = GuidedDecodingParams(regex="[0-9]+")


def engine() -> Any:
    known = Tokenizer(byte_tokenizer())
    return SimpleNamespace(path="made", tokenizer=known, vocab_size=known.vocab_size, eos_token_ids=[256])


@pytest.fixture(scope="module")
def shared() -> GuidedVocabulary:
    return GuidedVocabulary(engine())


@pytest.fixture
def known(shared: GuidedVocabulary) -> Iterator[GuidedVocabulary]:
    """Without the grammars of other tests. Afterwards it must compile as before, and nothing may be left of a job."""
    shared._grammars.clear()
    yield shared
    shared._grammars.clear()
    assert shared.compile(DIGITS).size > 0
    wait_until(lambda: not children(shared.compiler.pid))
    queue = shared.compiler._queue
    assert (queue._free, queue._slow_free) == (compile_queue.PLACES, compile_queue.SLOW_PLACES)
    assert not queue._waiting


def children(process: int | None) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.parametrize("shape", hostile.CHAINS)
def test_a_long_chain_of_rules_is_refused(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """It overruns the stack of the process that compiles it, or takes too long to translate."""
    monkeypatch.setattr(compile_process, "LIMIT_S", 2.0)
    child = known.compiler.pid
    with pytest.raises(
        InvalidRequestError, match=r"cannot be followed: (it nests too deep|to compile it takes longer)"
    ):
        known.compile(GuidedDecodingParams(**hostile.chain(shape, hostile.LONGEST[shape])))
    assert known.compiler.pid == child, "it took more than a fork with it"


@pytest.mark.parametrize("shape", hostile.CHAINS)
def test_a_short_chain_is_followed(known: GuidedVocabulary, shape: str) -> None:
    assert known.compile(GuidedDecodingParams(**hostile.chain(shape, 60))).first_mask(False).any()


def test_what_never_ends_is_ended(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_process, "LIMIT_S", 0.8)
    with pytest.raises(
        InvalidRequestError,
        match=r"regex cannot be followed: (to compile it takes longer than 0\.8 s|it takes more than)",
    ):
        known.compile(GuidedDecodingParams(**hostile.ENDLESS))


def test_empty_lines_and_comments_take_no_longer_than_their_length() -> None:
    """Twice as many take twice as long, not four times; ten times as many are room for a busy machine."""

    def seconds(lines: int) -> float:
        start = time.thread_time()
        assert not translation.RULE.search("\n" * lines)
        return time.thread_time() - start

    assert min(seconds(60_000) for _ in range(3)) < 10 * max(min(seconds(6_000) for _ in range(3)), 1e-3)


@pytest.mark.parametrize("asked", [hostile.BLANK_LINES, hostile.COMMENTS, hostile.TERMINALS], ids=["blank", "#", "T"])
def test_long_ones_are_followed_or_refused(
    known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(compile_process, "LIMIT_S", 3.0)
    words = ""
    try:
        known.compile(GuidedDecodingParams(**asked))
    except InvalidRequestError as error:
        words = str(error)
    assert not words or "cannot be followed" in words


def test_memory_is_bounded(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a grammar is compiled, and of what is kept of it."""
    monkeypatch.setattr(compile_process, "MEMORY", 8 << 20)
    with pytest.raises(InvalidRequestError, match="choice cannot be followed: it takes more than 8 MiB of memory"):
        known.compile(GuidedDecodingParams(choice=["ab" * 30_000]))
    monkeypatch.undo()
    monkeypatch.setattr(compile_process, "MOST_BYTES", 1 << 20)
    with pytest.raises(InvalidRequestError, match="choice cannot be followed: it takes more than 1 MiB of memory"):
        known.compile(GuidedDecodingParams(choice=["ab" * 10_000]))


def test_grammars_are_kept_by_their_size(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    params = [GuidedDecodingParams(choice=[letter * 1000]) for letter in "abc"]
    size = known.compile(params[0]).size
    assert size > 100_000
    monkeypatch.setattr(vocabulary, "KEPT_BYTES", int(2.5 * size))
    for each in params[1:]:
        known.compile(each)
    assert list(known._grammars) == params[1:]
    assert [known.knows(each) for each in params] == [False, True, True]


def test_a_killed_child_is_replaced(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a grammar, and while it compiles one: that one is tried again, once."""
    first = known.compiler.pid
    os.kill(first, signal.SIGKILL)
    assert known.compile(GuidedDecodingParams(regex="x+")).size > 0
    second = known.compiler.pid
    assert second not in (None, first)
    errors: list[Exception] = []

    def compile_slow() -> None:
        try:
            known.compile(GuidedDecodingParams(**hostile.ENDLESS))
        except Exception as error:
            errors.append(error)

    waiting = threading.Thread(target=compile_slow)
    waiting.start()
    kill_at_work(known, lambda child: child == second)
    kill_at_work(known, lambda child: child not in (None, second))
    waiting.join()
    assert isinstance(errors[0], EngineStoppedError)
    assert "was killed twice" in str(errors[0])


def kill_at_work(known: GuidedVocabulary, is_meant: Callable[[int | None], bool]) -> None:
    """Once the child that is meant compiles something."""
    wait_until(lambda: is_meant(known.compiler.pid) and children(known.compiler.pid), 30)
    os.kill(known.compiler.pid or 0, signal.SIGKILL)


@pytest.mark.parametrize("why", [OSError("no more processes"), ValueError("its last words"), TimeoutError("timed out")])
def test_a_child_that_does_not_start_again_is_no_requests_fault(
    known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch, why: Exception
) -> None:
    """Whether it was killed before the grammar came, or while it compiled it."""

    def none(*given: Any) -> Any:
        raise why

    for dies in (known.compiler._child.end, lambda: None):  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            dies()
            patch.setattr(compile_process.Child, "ask", lambda *given: none_left())
            patch.setattr(compile_process, "Child", none)
            with pytest.raises(EngineStoppedError, match=f"does not start .{why}"):
                known.compile(GuidedDecodingParams(regex="y+"))
        known.compile(GuidedDecodingParams(regex="z+"))


def none_left() -> Any:
    raise compile_process.Gone


def test_a_killed_fork_is_the_grammars_own_fault(known: GuidedVocabulary) -> None:
    """As the system kills what takes its memory."""
    errors: list[Exception] = []

    def compile_slow() -> None:
        try:
            known.compile(GuidedDecodingParams(**hostile.ENDLESS))
        except Exception as error:
            errors.append(error)

    waiting = threading.Thread(target=compile_slow)
    waiting.start()
    wait_until(lambda: children(known.compiler.pid))
    os.kill(children(known.compiler.pid)[0], signal.SIGKILL)
    waiting.join()
    assert isinstance(errors[0], InvalidRequestError)
    assert "of memory" in str(errors[0])


def test_the_same_grammar_is_compiled_once_for_all(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    ask = compile_process.Child.ask

    def counted(self: Any, job: Any, *rest: Any) -> Any:
        asked.append(job)
        time.sleep(0.1)
        return ask(self, job, *rest)

    monkeypatch.setattr(compile_process.Child, "ask", counted)
    found: list[Any] = []
    params = GuidedDecodingParams(regex="once")
    threads = [threading.Thread(target=lambda: found.append(known.compile(params))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_slow_ones_leave_their_places_to_others(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many grammars that never end as there are places, another is compiled all the same."""
    monkeypatch.setattr(compile_process, "LIMIT_S", 60.0)
    errors: list[Exception] = []

    def compile_slow(number: int) -> None:
        try:
            known.compile(GuidedDecodingParams(regex=hostile.ENDLESS["regex"] + "b" * number))
        except Exception as error:
            errors.append(error)

    many = compile_queue.PLACES + compile_queue.SLOW_PLACES
    threads = [threading.Thread(target=compile_slow, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(children(known.compiler.pid)) >= compile_queue.SLOW_PLACES, 10)
        wait_until(lambda: compiles(known, DIGITS), 30)
        assert len(children(known.compiler.pid)) >= compile_queue.SLOW_PLACES
    finally:
        for child in children(known.compiler.pid):
            os.kill(child, signal.SIGKILL)
        for thread in threads:
            thread.join()
    assert {type(error) for error in errors} == {QueueFullError, InvalidRequestError}


def compiles(known: GuidedVocabulary, params: GuidedDecodingParams) -> bool:
    """As a client tries again: on a machine as busy as this an honest one may seem slow too."""
    try:
        return known.compile(params).size > 0
    except QueueFullError:
        return False


def test_the_queue_is_bounded_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_queue, "MOST_WAITING", 2)
    queue, later = CompileQueue(), time.monotonic() + 30
    order: list[int] = []

    def enter(number: int) -> None:
        with queue.place(later):
            order.append(number)

    held = [queue.place(later) for _ in range(compile_queue.PLACES)]
    for place in held:
        place.__enter__()
    threads = []
    for number in range(2):
        threads.append(threading.Thread(target=enter, args=(number,)))
        threads[-1].start()
        wait_until(lambda: len(queue._waiting) == len(threads))
    with pytest.raises(QueueFullError, match="2 grammars wait"), queue.place(later):
        raise AssertionError
    held[0].__exit__(None, None, None)
    for thread in threads:
        thread.join()
    assert order == [0, 1]
    held[0] = queue.place(later)
    held[0].__enter__()
    with pytest.raises(QueueFullError, match="still being compiled"), queue.place(time.monotonic()):
        raise AssertionError
    for place in held:
        place.__exit__(None, None, None)


def test_engines_of_one_vocabulary_share_a_child(known: GuidedVocabulary) -> None:
    assert GuidedVocabulary(engine()).compiler is known.compiler
    other = engine()
    other.eos_token_ids = [3]
    assert GuidedVocabulary(other).compiler is not known.compiler


def test_the_child_goes_with_the_last_engine() -> None:
    mine = engine()
    mine.eos_token_ids = [7]
    reader = VocabularyReader(mine)
    child = reader.get().compiler.pid
    assert Path(f"/proc/{child}").exists()
    reader.close()
    assert not Path(f"/proc/{child}").exists()
    with pytest.raises(EngineStoppedError):
        reader.get()


def test_closing_while_a_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it. Who asked hears of its end, and then the child goes."""
    monkeypatch.setattr(compile_process, "LIMIT_S", 2.0)
    mine, errors = engine(), []
    mine.eos_token_ids = [11]
    reader = VocabularyReader(mine)

    def compile_slow(known: GuidedVocabulary) -> None:
        try:
            known.compile(GuidedDecodingParams(**hostile.ENDLESS))
        except InvalidRequestError as error:
            errors.append(str(error))

    child = reader.get().compiler.pid
    asking = threading.Thread(target=compile_slow, args=(reader.get(),))
    asking.start()
    wait_until(lambda: children(child), 20)
    reader.close()
    asking.join()
    assert "cannot be followed" in errors[0]  # by its time or its size, whichever comes first
    del asking
    wait_until(lambda: not Path(f"/proc/{child}").exists(), 20)


PARENT = """
import os, sys, threading
from support import hostile_grammars as hostile
from tensorwright import GuidedDecodingParams
from runtime_test import engine
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
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
    folders = [str(Path(__file__).parents[1])]
    program = PARENT.replace("from runtime_test import engine\n", ENGINE)
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )  # fmt: skip
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        child = int(parent.stdout.readline())
        wait_until(lambda: children(child), 20)
        forks = children(child)
        parent.kill()
        parent.wait()
        for process in (child, *forks):
            wait_until(lambda: gone(process), 20)  # noqa: B023


def test_the_child_goes_when_its_parent_was_killed_before_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though somebody else holds the parent's socket."""
    header = compile_process.SpelledVocabulary.header
    monkeypatch.setattr(
        compile_process.SpelledVocabulary, "header", lambda self: header(self) | {"parent": os.getppid()}
    )
    orphan = compile_process.Child(compile_process.SpelledVocabulary(array("I", [1, 1]).tobytes(), b"ab", (1,)))
    wait_until(lambda: not orphan.runs, 20)


def test_a_fork_finds_the_locks_free() -> None:
    """Whatever other threads of its parent did just then."""
    for lock in (compile_process._sharing, grammar._starting):
        with lock:
            process = os.fork()
            if process == 0:
                signal.alarm(20)  # it would wait for ever
                with lock:
                    os._exit(0)
        assert os.waitpid(process, 0)[1] == 0


ENGINE = """
from types import SimpleNamespace
from support.fake_runtime import byte_tokenizer
from tensorwright.runtime.tokenizer import Tokenizer
def engine():
    known = Tokenizer(byte_tokenizer())
    return SimpleNamespace(path="made", tokenizer=known, vocab_size=known.vocab_size, eos_token_ids=[256])
"""


def gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True
    return re.search(r"\) (\w)", state)[1] == "Z"  # type: ignore[index]


def test_a_vocabulary_that_ends_its_reader_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "reads_badly.py"
    module.write_text("import os, sys\nprint('explicit panic', file=sys.stderr)\nos.abort()\n")
    monkeypatch.setattr(compile_process, "MODULE", "reads_badly")
    monkeypatch.syspath_prepend(str(tmp_path))
    other = engine()
    other.eos_token_ids = [9]
    with pytest.raises(InvalidRequestError, match="status -6; its last words: explicit panic"):
        GuidedVocabulary(other)


def test_the_serving_process_has_more_stack_than_the_child() -> None:
    assert grammar.STACK_BYTES >= 2 * compile_child.STACK_BYTES
    before = threading.stack_size()
    assert grammar.on_large_stack(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        grammar.on_large_stack(lambda: 1 // 0)
    assert threading.stack_size() == before


@pytest.mark.parametrize("name", ["python3", "triton_python_backend_stub", ""])
def test_which_python_runs_the_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    if name:
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / name) if name else "")
    found = other_python.interpreter()
    assert Path(found).name.startswith("python")
    assert (Path(found).parent == tmp_path) == (name == "python3")
