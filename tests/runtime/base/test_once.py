"""An attribute that is computed once: its lock is the object's own."""

from __future__ import annotations

import threading

from support.waiting import PATIENCE
from tensorwright.runtime.base.once import kept_with, once
from tensorwright.runtime.engine.engine_dir import EngineDir


class Slow:
    def __init__(self, go_on: threading.Event):
        self.go_on, self.begun, self.computed = go_on, threading.Event(), 0

    @once
    def value(self) -> int:
        """What it is."""
        self.computed += 1
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return self.computed


def test_one_object_does_not_wait_for_another_and_each_is_computed_once() -> None:
    go_on, ready = threading.Event(), threading.Event()
    ready.set()
    slow, other = Slow(go_on), Slow(ready)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(slow.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert slow.begun.wait(PATIENCE)
    assert other.value == 1  # while the first is at work: functools.cached_property of Python 3.11 would wait for it
    assert not found
    go_on.set()
    for thread in threads:
        thread.join()
    assert (found, slow.computed, slow.value) == ([1] * 4, 1, 1)


def test_what_fails_is_computed_again_and_a_class_gives_the_attribute_itself() -> None:
    slow = Slow(threading.Event())
    slow.go_on.wait = lambda timeout=None: False  # type: ignore[method-assign]
    for time in (1, 2):
        try:
            _ = slow.value
        except AssertionError:
            assert slow.computed == time
    assert Slow.value.__doc__ == "What it is."
    assert isinstance(vars(EngineDir)["tokenizer"], once)


def test_a_value_that_is_there_is_read_without_the_lock() -> None:
    """Every request over HTTP asks for its engine's VocabularyReader in this way."""
    owner = Slow(threading.Event())
    first = kept_with(owner, len_of_name)
    vars(owner)["_once_lock"] = None  # taking this lock would be a TypeError
    assert kept_with(owner, len_of_name) == first == len("Slow")


def len_of_name(owner: Slow) -> int:
    return len(type(owner).__name__)
