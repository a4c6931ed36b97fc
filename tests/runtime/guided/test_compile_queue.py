"""Who may compile a grammar: in order, bounded, and fair among clients. No test rests on a clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.waiting import PATIENCE, wait_until
from tensorwright.errors import QueueFullError
from tensorwright.runtime.guided import compile_queue
from tensorwright.runtime.guided.compile_queue import CompileQueue, Place, on_behalf_of


def test_the_queue_is_bounded_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_queue, "MAX_WAITING", 2)
    queue, later = CompileQueue(), time.monotonic() + PATIENCE
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


@contextmanager
def place_of(queue: CompileQueue, client: str) -> Iterator[Place]:
    """Of somebody who does not wait."""
    with on_behalf_of(client), queue.place(time.monotonic()) as place:
        yield place


def test_no_client_has_both_slow_places() -> None:
    queue = CompileQueue()
    with place_of(queue, "greedy") as first:
        first.took_long()
        with place_of(queue, "greedy") as second:
            with pytest.raises(QueueFullError, match="another grammar of the same client takes as long"):
                second.took_long()
            with place_of(queue, "polite") as other:
                other.took_long()
                assert (first.slow, second.slow, other.slow) == (True, False, True)
                with (
                    place_of(queue, "third") as late,
                    pytest.raises(QueueFullError, match="other grammars take as long"),
                ):
                    late.took_long()
    assert not [*queue._quick.holders, *queue._slow.holders]


def test_no_client_has_both_quick_places() -> None:
    """Its second grammar waits, and another client's passes it."""
    queue, order, done = CompileQueue(), list[str](), threading.Event()

    def follow() -> None:
        with on_behalf_of("greedy"), queue.place(time.monotonic() + PATIENCE):
            order.append("greedy")
        done.set()

    with place_of(queue, "greedy"):
        waiting = threading.Thread(target=follow)
        waiting.start()
        wait_until(lambda: queue._waiting)
        with place_of(queue, "polite"):
            order.append("polite")
        assert not done.is_set()
    waiting.join()
    assert order == ["polite", "greedy"]


def test_where_nobody_tells_clients_apart_one_has_all_places() -> None:
    queue = CompileQueue()
    later = time.monotonic() + PATIENCE
    with queue.place(later) as first, place_of(queue, "") as second:
        first.took_long()
        second.took_long()
        assert queue._slow.full
        with queue.place(later), queue.place(later):
            assert queue._quick.full


def test_a_grammar_that_is_begun_anew_takes_its_slow_place_once() -> None:
    queue = CompileQueue()
    with place_of(queue, "one") as place:
        for _ in range(2):
            place.took_long()
            assert (len(queue._quick.holders), len(queue._slow.holders)) == (0, 1)
    assert not queue._slow.holders
