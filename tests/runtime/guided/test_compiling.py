"""Grammars in the process that compiles them first: what ends there, and how it is answered."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from support import hostile_grammars as hostile
from support.grammar_process import DIGITS, begin_compiling, children
from support.waiting import PATIENCE, wait_until
from tensorwright import GuidedDecodingParams
from tensorwright.errors import InvalidRequestError, QueueFullError
from tensorwright.runtime.guided import (
    compile_child,
    compile_process,
    compile_queue,
    grammar,
    translation,
    vocabulary,
)
from tensorwright.runtime.guided.library import LibraryMatcher
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary


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
    """Ten times as many take ten times as long, not a hundred times; the rest is room for a busy machine."""

    def seconds(lines: int) -> float:
        start = time.thread_time()
        assert not translation.RULE.search("\n" * lines)
        return time.thread_time() - start

    assert min(seconds(60_000) for _ in range(3)) < 40 * max(min(seconds(6_000) for _ in range(3)), 1e-3)


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
    monkeypatch.setattr(compile_process, "MAX_BYTES", 1 << 20)
    with pytest.raises(InvalidRequestError, match="choice cannot be followed: it takes more than 1 MiB of memory"):
        known.compile(GuidedDecodingParams(choice=["ab" * 10_000]))


def test_the_second_compile_is_bounded_by_the_first(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can end the one in this process: what took longer in the other never comes here."""
    here: list[Any] = []
    monkeypatch.setattr(grammar, "compiled", lambda *given: here.append(given))
    monkeypatch.setattr(compile_process, "PROCESSOR_S", 0.0)
    with pytest.raises(
        InvalidRequestError, match="cannot be followed: to compile it takes more than 0 s of a processor"
    ):
        known.compile(GuidedDecodingParams(regex="p+"))
    assert here == []


def test_the_second_compile_computes_the_first_mask_once(
    known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does no more than the first did."""
    computed: list[str] = []
    for name in ("has_mask", "compute_mask"):
        made = getattr(LibraryMatcher, name)
        monkeypatch.setattr(
            LibraryMatcher, name, lambda *given, name=name, made=made: computed.append(name) or made(*given)
        )
    assert known.compile(GuidedDecodingParams(regex="q")).first_mask(False).any()
    assert computed == ["compute_mask"]


def test_other_threads_go_on_while_a_grammar_is_compiled_here(
    known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter takes its lock from nobody here, so another thread can only go on where the library lets go of
    it. It may be given no processor just then, so one try of many is enough."""
    rounds, over, went_on = [0], threading.Event(), []
    begin = known.tokens.library.llg_new_matcher

    def watched(*given: Any) -> Any:
        before = rounds[0]
        made = begin(*given)
        went_on.append(rounds[0] > before)
        return made

    def count() -> None:
        while not over.is_set():
            rounds[0] += 1
            time.sleep(0)  # which lets go of it too

    monkeypatch.setattr(known.tokens.library, "llg_new_matcher", watched)
    interval, thread = sys.getswitchinterval(), threading.Thread(target=count)
    sys.setswitchinterval(1e6)
    thread.start()
    try:
        while not any(went_on) and len(went_on) < 100:
            known.compile(GuidedDecodingParams(choice=["r" * (1000 + len(went_on))]))
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert any(went_on)


@pytest.mark.parametrize(("seconds", "gives_way"), [(0.01, False), (compile_queue.QUICK_S * 2, True)])
def test_what_takes_long_gives_way_in_the_serving_process(
    shared: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch, seconds: float, gives_way: bool
) -> None:
    """To the threads that compute for requests, as the other process does. seconds: what that took."""
    asked: list[bool] = []
    large = grammar.on_large_stack
    monkeypatch.setattr(grammar, "on_large_stack", lambda work, way: asked.append(way) or large(work, way))
    text = translation.translate(shared.tokens, GuidedDecodingParams(regex="s"), grammar.LIMITS)
    compiler: Any = SimpleNamespace(compile=lambda params, limits, finish: finish(text, 1, seconds))
    grammar.compile_grammar(compiler, shared.tokens, shared.masks, GuidedDecodingParams(regex="s"))
    assert asked == [gives_way]
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    own = grammar.on_large_stack(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), gives_way)
    assert own == min(19, priority + gives_way * compile_child.NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority


def test_grammars_are_kept_by_their_size(known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    params = [GuidedDecodingParams(choice=[letter * 1000]) for letter in "abc"]
    size = known.compile(params[0]).size
    assert size > 100_000
    monkeypatch.setattr(vocabulary, "KEPT_BYTES", int(2.5 * size))
    for each in params[1:]:
        known.compile(each)
    assert list(known._grammars) == params[1:]
    assert [known.knows(each) for each in params] == [False, True, True]


def test_a_killed_fork_is_the_grammars_own_fault(known: GuidedVocabulary) -> None:
    """As the system kills what takes its memory."""
    errors: list[Exception] = []
    waiting = begin_compiling(known, GuidedDecodingParams(**hostile.ENDLESS), errors)
    (fork,) = wait_until(lambda: children(known.compiler.pid))
    os.kill(fork, signal.SIGKILL)
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


def test_who_asks_for_the_same_does_not_share_a_refusal_for_want_of_a_place(
    known: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue refuses whoever asked first: the others ask again for themselves, once."""
    begun, refused = threading.Event(), threading.Event()
    calls: list[str] = []
    compile_one = vocabulary.compile_grammar

    def refuses_the_first(*asked: Any) -> Any:
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            begun.set()
            refused.wait(PATIENCE)
            raise QueueFullError("no place")
        return compile_one(*asked)

    monkeypatch.setattr(vocabulary, "compile_grammar", refuses_the_first)
    params = GuidedDecodingParams(regex="no place, then one")
    answers: dict[str, object] = {}

    def ask() -> None:
        try:
            answers[threading.current_thread().name] = known.compile(params)
        except QueueFullError as error:
            answers[threading.current_thread().name] = error

    first, second = (threading.Thread(target=ask, name=name) for name in ("first", "second"))
    first.start()
    assert begun.wait(PATIENCE)
    coming = known._compiling[params]
    second.start()
    wait_until(lambda: coming._condition._waiters)  # type: ignore[attr-defined]
    refused.set()
    first.join()
    second.join()
    assert calls == ["first", "second"]
    assert isinstance(answers["first"], QueueFullError)
    assert isinstance(answers["second"], grammar.Grammar)


def test_slow_ones_leave_their_places_to_others(known: GuidedVocabulary) -> None:
    """With as many grammars that never end as there are places, another is compiled all the same."""
    errors: list[Exception] = []
    many = compile_queue.PLACES + compile_queue.SLOW_PLACES
    slow = [GuidedDecodingParams(regex=hostile.ENDLESS["regex"] + "b" * number) for number in range(many)]
    threads = [begin_compiling(known, params, errors) for params in slow]
    try:
        wait_until(lambda: len(errors) == many - compile_queue.SLOW_PLACES)  # the others have the slow places
        wait_until(lambda: compiles(known, DIGITS))
        assert len(children(known.compiler.pid)) >= compile_queue.SLOW_PLACES
    finally:
        for child in children(known.compiler.pid):
            with contextlib.suppress(ProcessLookupError):  # it may end by itself meanwhile
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


def test_the_serving_process_has_more_stack_than_the_child() -> None:
    assert grammar.STACK_BYTES >= 2 * compile_child.STACK_BYTES
    before = threading.stack_size()
    assert grammar.on_large_stack(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        grammar.on_large_stack(lambda: 1 // 0)
    assert threading.stack_size() == before
