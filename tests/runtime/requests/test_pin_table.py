"""The table of pinned prefixes by itself: its bounds hold however many pin at once, and nobody waits for its file."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from support.waiting import PATIENCE
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.requests import pinned_prefixes
from tensorwright.runtime.requests.pinned_prefixes import PinTable

BLOCK = 4
TOKENS = range(2 * BLOCK)


def table(file: Path | None = None) -> PinTable:
    """Of an engine that has the blocks of everything."""
    return PinTable(lambda number, tokens, salt: len(tokens) // BLOCK, lambda number: None, BLOCK, 100, file)


def test_who_checked_before_others_pinned_is_held_to_the_bound_all_the_same() -> None:
    pins = table()
    for name in ("a", "b"):
        pins.check(name, "key", 1)
    assert pins.hold("a", TOKENS, "", "key", 1) is not None
    with pytest.raises(InvalidRequestError, match="at most 1 here prefixes may be pinned"):
        pins.hold("b", TOKENS, "", "key", 1)
    assert pins.hold("a", TOKENS, "", "key", 1) is not None, "the same name is replaced"
    assert [pin.name for pin in pins.of("key")] == ["a"]


def test_tokens_are_bounded_though_prefixes_share_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_prefixes, "MAX_PINNED_TOKENS", 3 * len(TOKENS))
    pins = table()
    for name in "abc":
        assert pins.hold(name, TOKENS) is not None
    with pytest.raises(InvalidRequestError, match="at most 24 tokens together, got 32 with this one"):
        pins.hold("d", TOKENS)
    assert pins.hold("c", TOKENS) is not None


def test_a_slow_disk_holds_up_nobody_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = table(tmp_path / "pins.json")
    written, go_on = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        written.set()
        assert go_on.wait(PATIENCE)

    monkeypatch.setattr(pinned_prefixes.os, "fsync", slow)
    thread = threading.Thread(target=pins.hold, args=("a", TOKENS))
    thread.start()
    try:
        assert written.wait(PATIENCE)
        asked = threading.Thread(target=lambda: (pins.of(), pins.check("b")), daemon=True)
        asked.start()
        asked.join(PATIENCE)
        assert not asked.is_alive()
    finally:
        go_on.set()
        thread.join(PATIENCE)
    assert [pin.name for pin in table(tmp_path / "pins.json").of()] == ["a"]
