"""The threads that compute token masks: nobody waits for a slow grammar, and none may go on being slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import hostile_grammars as hostile
from support.fake_runtime import byte_tokenizer
from support.waiting import PATIENCE, wait_until
from tensorwright import GuidedDecodingParams
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided import grammar, library
from tensorwright.runtime.guided.mask_budget import MAX_S, PER_MASK_S, SLOW_S, MaskBudget
from tensorwright.runtime.guided.mask_threads import SLOW_THREADS, MaskJob, MaskThreads, Watch, _computed
from tensorwright.runtime.guided.matcher import MAX_FORESEEN
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
from tensorwright.runtime.text.tokenizer import Tokenizer

MASK = np.ones(1, np.uint32)


class Matcher:
    """As far as the threads know one. work: what a mask takes."""

    def __init__(self, work: Any = lambda: None, slow: bool = False):
        self.budget = MaskBudget()
        self.budget._recent = 1.0 if slow else 0.0
        self.cancelled = threading.Event()
        self.threads: list[str] = []
        self._work = work
        self.lock, self.foresees = threading.Lock(), False

    def take_foreseen(self, tokens: Any) -> bool:
        return False

    def advance(self, tokens: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        self._work()
        return MASK

    def cancel(self) -> None:
        self.cancelled.set()

    def error(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(why)


class Told:
    def __init__(self) -> None:
        self.all: list[tuple[Any, Exception | None]] = []

    def __call__(self, mask: Any, error: Exception | None) -> None:
        self.all.append((mask, error))


@pytest.fixture
def threads() -> Iterator[MaskThreads]:
    others = set(threading.enumerate())  # of engines that other tests share
    made = MaskThreads()
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if "mask" in thread.name and thread not in others]


def burn(seconds: float) -> None:
    """Seconds of a processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_quick_ones_are_there_at_the_return(threads: MaskThreads) -> None:
    told = [Told() for _ in range(5)]
    threads.compute([MaskJob(Matcher(), [1], each) for each in told], 60)  # type: ignore[arg-type]
    assert [each.all for each in told] == [[(MASK, None)]] * 5


def test_nobody_waits_for_a_slow_one(threads: MaskThreads) -> None:
    """More slow ones than threads for them stand still: quick ones are computed all the same."""
    go_on = threading.Event()
    slow, quick = Told(), Told()
    jobs = [MaskJob(Matcher(go_on.wait, slow=True), [1], slow) for _ in range(2 * SLOW_THREADS)]  # type: ignore[arg-type]
    try:
        threads.compute(jobs, 60)
        for _ in range(10):
            threads.compute([MaskJob(Matcher(), [1], quick)], 60)  # type: ignore[arg-type]
        assert len(quick.all) == 10
        assert not slow.all
    finally:
        go_on.set()
    wait_until(lambda: len(slow.all) == 2 * SLOW_THREADS)


def test_the_consumer_waits_for_a_quick_one_only_so_long(threads: MaskThreads) -> None:
    go_on, told = threading.Event(), Told()
    try:
        threads.compute([MaskJob(Matcher(go_on.wait), [1], told)], 0.001)  # type: ignore[arg-type]
        assert not told.all
    finally:
        go_on.set()
    wait_until(lambda: told.all == [(MASK, None)])


def test_one_that_was_slow_is_computed_apart_until_it_is_quick_again(threads: MaskThreads) -> None:
    work = [2 * SLOW_S, 0.0, 0.0, 0.0, 0.0]
    matcher, told = Matcher(lambda: burn(work.pop(0))), Told()
    for count in range(1, 6):
        threads.compute([MaskJob(matcher, [1], told)], 60)  # type: ignore[arg-type]
        wait_until(lambda: len(told.all) == count)  # noqa: B023
    assert matcher.threads[0] == "tensorwright-masks"
    assert matcher.threads[1].startswith("tensorwright-slow-masks")
    assert matcher.threads[-1] == "tensorwright-masks"


def test_errors_are_told(threads: MaskThreads) -> None:
    told = Told()
    threads.compute([MaskJob(Matcher(lambda: 1 // 0), [1], told)], 60)  # type: ignore[arg-type]
    assert isinstance(told.all[0][1], ZeroDivisionError)


def test_what_takes_too_long_is_cancelled(threads: MaskThreads) -> None:
    told = Told()

    def endless() -> None:
        while not matcher.cancelled.is_set():
            burn(0.001)

    matcher = Matcher(endless)
    threads.compute([MaskJob(matcher, [1], told)], 0.001)  # type: ignore[arg-type]
    wait_until(lambda: told.all)
    assert told.all[0][0] is None
    assert "its masks take longer than 10 ms each" in str(told.all[0][1])


def watch_lines() -> list[int]:
    """Of the loop of the thread that watches."""
    lines = {line for _, _, line in Watch.run.__code__.co_lines() if line}
    return sorted(lines - {Watch.run.__code__.co_firstlineno})


@pytest.mark.parametrize("at", range(len(watch_lines())))
def test_what_begins_at_any_moment_is_watched(threads: MaskThreads, at: int) -> None:
    """Wherever the thread that watches is just then."""
    line, held, go_on, told = watch_lines()[at], threading.Event(), threading.Event(), Told()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not Watch.run.__code__:
            return None
        if event == "line" and frame.f_lineno == line and started.is_set() and not held.is_set():
            held.set()
            go_on.wait(0.2)  # where it holds a lock, the mask begins only afterwards
        return trace

    def endless() -> None:
        while not matcher.cancelled.is_set() and time.monotonic() < end:
            burn(0.001)

    matcher, started, end = Matcher(endless), threading.Event(), time.monotonic() + PATIENCE
    threading.settrace(trace)
    try:
        threads.compute([MaskJob(Matcher(), [1], Told())], 60)  # type: ignore[arg-type]
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    started.set()
    if not held.wait(0.1):  # a line that it comes to only while something runs
        threads.compute([MaskJob(Matcher(lambda: held.wait(0.3)), [1], Told())], 60)  # type: ignore[arg-type]
    threads.compute([MaskJob(matcher, [1], told)], 0.001)  # type: ignore[arg-type]
    go_on.set()
    wait_until(lambda: told.all)
    assert matcher.cancelled.is_set()


def test_each_thread_asks_for_its_own_clock(threads: MaskThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a thread which has ended must not be asked for."""
    asked: list[tuple[int, int]] = []
    clock_of = time.pthread_getcpuclockid

    def asking(thread: int) -> int:
        asked.append((thread, threading.get_ident()))
        return clock_of(thread)

    monkeypatch.setattr(time, "pthread_getcpuclockid", asking)
    work = Matcher(lambda: time.sleep(0.05))
    threads.compute([MaskJob(work, [1], Told())], 60)  # type: ignore[arg-type]
    assert asked
    assert all(thread == caller for thread, caller in asked)


@pytest.mark.parametrize("failing", range(2 + SLOW_THREADS))
def test_without_threads_the_masks_fail_and_nothing_else(
    threads: MaskThreads, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """failing: which of the threads the system has none for. Afterwards all is as if nobody had asked."""
    start, count, told = threading.Thread.start, [0], Told()

    def refuse(self: threading.Thread) -> None:
        count[0] += 1
        if count[0] == failing + 1:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads.compute([MaskJob(Matcher(), [1], told)], 60)  # type: ignore[arg-type]
    assert isinstance(told.all[0][1], RuntimeError)
    threads.compute([MaskJob(Matcher(), [1], told)], 60)  # type: ignore[arg-type]
    assert told.all[1] == (MASK, None)


def test_closing_waits_for_no_mask() -> None:
    """What is computed is cancelled, and what waits is not begun."""
    made, begun, ended = MaskThreads(), threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        assert any(matcher.cancelled.wait(0.01) for _ in range(500) for matcher in matchers)

    matchers = [Matcher(work, slow=True) for _ in range(20 * SLOW_THREADS)]
    made.compute([MaskJob(matcher, [1], Told()) for matcher in matchers], 60)  # type: ignore[arg-type]
    for _ in range(SLOW_THREADS):
        begun.acquire()
    closing = threading.Thread(target=lambda: made.close() or ended.set(), daemon=True)  # type: ignore[func-returns-value]
    closing.start()
    assert ended.wait(PATIENCE)
    assert sum(bool(matcher.threads) for matcher in matchers) == SLOW_THREADS


def test_who_cannot_be_told_harms_nobody(threads: MaskThreads, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()

    def fails(mask: Any, error: BaseException | None) -> None:
        raise SystemExit

    threads.compute([MaskJob(Matcher(), [1], fails), MaskJob(Matcher(), [1], told)], 60)  # type: ignore[arg-type]
    assert told.all == [(MASK, None)]
    assert "a mask could not be told" in caplog.text


def test_a_wait_costs_nothing(threads: MaskThreads) -> None:
    """Only what a processor did counts: on a busy machine a mask takes long by the clock."""
    told = Told()
    threads.compute([MaskJob(Matcher(lambda: time.sleep(3 * MAX_S)), [1], told)], 60)  # type: ignore[arg-type]
    wait_until(lambda: told.all == [(MASK, None)])


def test_the_budget() -> None:
    budget = MaskBudget()
    assert all(budget.pay(PER_MASK_S) for _ in range(1000))
    assert budget.pay(MAX_S)
    assert budget.left == pytest.approx(PER_MASK_S)
    assert budget.pay(100 * MAX_S), "a clock may leap once"
    assert budget.left == pytest.approx(PER_MASK_S)
    assert not budget.pay(MAX_S)
    many = MaskBudget()
    assert [many.pay(2 * PER_MASK_S) for _ in range(20)].index(False) <= 6


def test_a_clock_that_leaps_once_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a processor is taken away unseen: the mask is not cancelled at once, and it counts. A second time is
    too much."""
    leaps, clock = [0.0], time.thread_time

    def leap() -> None:
        leaps[0] += 100 * MAX_S
        for each in watch._running.values():
            each.look()

    monkeypatch.setattr(time, "thread_time", lambda: clock() + leaps[0])
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock() + leaps[0])
    watch, matcher = Watch(), Matcher(leap)
    job = MaskJob(matcher, [1], Told())  # type: ignore[arg-type]
    advance = partial(matcher.advance, [1])
    assert _computed(job, watch, advance) == (MASK, None)
    assert not matcher.cancelled.is_set()
    mask, error = _computed(job, watch, advance)
    assert mask is None
    assert "its masks take longer than 10 ms each" in str(error)


def test_what_is_late_twice_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its first mask would have been forgiven."""
    now, looks = [0.0], [False, True]

    def work() -> None:
        now[0] += 2 * MAX_S
        for cancelled in looks:
            for each in watch._running.values():
                each.look()
            assert matcher.cancelled.is_set() == cancelled

    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    monkeypatch.setattr(time, "clock_gettime", lambda which: now[0])
    watch, matcher = Watch(), Matcher(work)
    job = MaskJob(matcher, [1], Told())  # type: ignore[arg-type]
    mask, error = _computed(job, watch, partial(matcher.advance, [1]))
    assert mask is None
    assert "its masks take longer than 10 ms each" in str(error)


@pytest.fixture(scope="module")
def vocabulary() -> GuidedVocabulary:
    known = Tokenizer(byte_tokenizer())
    engine: Any = SimpleNamespace(path="made", tokenizer=known, vocab_size=known.vocab_size, eos_token_ids=[256])
    return GuidedVocabulary(engine)


def test_an_ambiguous_grammar_ends_at_its_limit(
    vocabulary: GuidedVocabulary, threads: MaskThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of time, where that of items does not hold."""
    for name in ("step_max_items", "max_items_in_row"):
        monkeypatch.setitem(grammar.LIMITS, name, 100_000_000)
    vocabulary._grammars.clear()
    assert "its masks take longer than 10 ms each" in follow(vocabulary, threads, hostile.SLOWLY_AMBIGUOUS)
    vocabulary._grammars.clear()


def follow(vocabulary: GuidedVocabulary, threads: MaskThreads, asked: dict[str, Any]) -> str:
    """Says "a" as long as the grammar goes on; then its error."""
    letter = byte_tokenizer().token_to_id("a")
    matcher = vocabulary.compile(GuidedDecodingParams(**asked)).start(False)
    told = Told()
    for count in range(1, 2000):
        threads.compute([MaskJob(matcher, [letter], told)], 60)
        wait_until(lambda: len(told.all) == count)  # noqa: B023
        if told.all[-1][1] is not None:
            return str(told.all[-1][1])
    return ""


def test_a_forced_text_is_tokenized_in_part(vocabulary: GuidedVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks again for each mask: the whole would take the square of its length."""
    asked: list[str] = []
    run = library._callback(lambda text: asked.append(text) or [1])  # type: ignore[func-returns-value]
    text = ("é" * 3000).encode()
    assert run(None, library.ctypes.cast(text, library.c_void_p), len(text), (library.c_uint32 * 8)(), 8) == 1
    assert asked == ["é" * (library.TOKENIZED_BYTES // 2)]
    matcher = vocabulary.compile(GuidedDecodingParams(choice=["ab" * 2000])).start(False)
    letters = [byte_tokenizer().token_to_id(letter) for letter in "ab"]
    for count in range(100):
        mask = matcher.advance([letters[count % 2]])
        assert mask is not None
        assert np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")) == [letters[(count + 1) % 2]]


def test_one_in_the_queue_holds_no_matcher(vocabulary: GuidedVocabulary) -> None:
    waiting = vocabulary.compile(GuidedDecodingParams(regex="[0-9]+")).start(False)
    assert "matcher" not in vars(waiting)
    waiting.cancel()
    waiting.advance([byte_tokenizer().token_to_id("1")])
    assert "matcher" in vars(waiting)


def told_numbers(mask: Any) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def test_a_matcher_moves_over_forced_tokens_and_waits_for_the_engine(vocabulary: GuidedVocabulary) -> None:
    """The masks are those of one step at a time, and the end comes when the engine has drawn what leads to it."""
    letters = [byte_tokenizer().token_to_id(letter) for letter in "abcde"]
    compiled = vocabulary.compile(GuidedDecodingParams(choice=["abcde", "b"]))
    stepped, ahead = compiled.start(True), compiled.start(True)
    expected = [stepped.advance([letter]) for letter in letters]
    assert stepped.ended
    assert not ahead.foresees
    masks = [ahead.advance(letters[:1])]
    while ahead.foresees:
        masks.append(ahead.foresee())
    assert [None if mask is None else told_numbers(mask) for mask in masks] == [
        None if mask is None else told_numbers(mask) for mask in expected
    ]
    assert not ahead.ended
    assert ahead.take_foreseen(letters[1:3])
    assert not ahead.ended
    assert not ahead.take_foreseen(letters[3:])  # behind it is the end, which is told now
    assert ahead.advance(letters[3:]) is None
    assert (ahead.ended, ahead.generated) == (True, 5)


def test_tokens_beyond_what_was_foreseen_are_followed(vocabulary: GuidedVocabulary) -> None:
    letters = [byte_tokenizer().token_to_id(letter) for letter in "aabc"]
    matcher = vocabulary.compile(GuidedDecodingParams(regex="aab?c+")).start(False)
    matcher.advance(letters[:1])
    assert told_numbers(matcher.foresee()) == sorted(letters[2:])
    assert not matcher.foresees  # a choice
    mask = matcher.advance(letters[1:])  # one that was foreseen, and two that were drawn
    assert told_numbers(mask) == [letters[3], 256]
    assert matcher.generated == 4


def test_masks_of_forced_tokens_are_told_ahead(vocabulary: GuidedVocabulary, threads: MaskThreads) -> None:
    """Once each and in order, up to a bound, and each token's mask before the engine needs it."""
    letter = byte_tokenizer().token_to_id("a")
    matcher = vocabulary.compile(GuidedDecodingParams(regex="a{50}b")).start(False)
    told: list[int] = []
    for count in range(1, 50):
        threads.compute([MaskJob(matcher, [letter], lambda mask, error: told.append(matcher.generated))], 60)
        assert told == list(range(1, min(count + MAX_FORESEEN, 51) + 1))
