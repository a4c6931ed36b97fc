"""The policies of a router: who computes a prompt, who answers, and who is passed over."""

from __future__ import annotations

from tensorwright.runtime.routing.decode_choice import DecodeChoice
from tensorwright.runtime.routing.prefix_choice import PIECE, PrefixChoice, pieces_of
from tensorwright.runtime.routing.reachable import Reachable

NAMES = ("a", "b", "c")


def text(seed: int, pieces: int) -> bytes:
    return bytes((seed * 31 + i // 7) % 256 for i in range(pieces * PIECE))


def test_pieces_stand_for_all_before_them() -> None:
    keys = pieces_of(text(1, 4) + b"rest")
    assert len(keys) == 4
    assert pieces_of(text(1, 4)[: 2 * PIECE]) == keys[:2]
    other = b"x" + text(1, 4)[1:]
    assert not set(pieces_of(other)) & set(keys)


def test_equal_engines_take_turns() -> None:
    choice = PrefixChoice(NAMES)
    keys = pieces_of(text(1, 2))
    assert {choice.choose(keys, 2 * PIECE, NAMES) for _ in range(3)} == set(NAMES)


def test_a_beginning_goes_where_it_was_before() -> None:
    choice = PrefixChoice(NAMES)
    first = pieces_of(text(1, 8))
    choice.end("b", choice.begin("b", first, 8 * PIECE))
    longer = pieces_of(text(1, 8) + text(2, 2))
    for _ in range(6):
        assert choice.choose(longer, 10 * PIECE, NAMES) == "b"
    assert choice.missing("b", longer, 10 * PIECE) == 2 * PIECE
    assert choice.missing("a", longer, 10 * PIECE) == 10 * PIECE


def test_an_engine_with_more_work_than_the_beginning_saves_is_passed_over() -> None:
    choice = PrefixChoice(NAMES)
    shared = pieces_of(text(1, 8))
    choice.end("b", choice.begin("b", shared, 8 * PIECE))
    work = choice.begin("b", pieces_of(text(5, 9)), 9 * PIECE)
    assert choice.choose(shared, 8 * PIECE, NAMES) in ("a", "c")
    choice.end("b", work)
    assert choice.work("b") == 0
    assert choice.choose(shared, 8 * PIECE, NAMES) == "b"
    assert choice.choose(shared, 8 * PIECE, ["a", "c"]) in ("a", "c")


def test_what_is_remembered_is_bounded() -> None:
    choice = PrefixChoice(NAMES, most=4)
    first, second = pieces_of(text(1, 3)), pieces_of(text(2, 3))
    for keys in (first, second):
        choice.end("a", choice.begin("a", keys, 3 * PIECE))
    assert choice.missing("a", second, 3 * PIECE) == 0
    assert choice.missing("a", first, 3 * PIECE) == 3 * PIECE
    choice.forget("a")
    assert choice.missing("a", second, 3 * PIECE) == 3 * PIECE


def test_answers_go_to_the_engine_with_fewest() -> None:
    choice = DecodeChoice(NAMES)
    for _ in range(9):
        choice.begin(choice.choose(NAMES))
    assert [choice.running(name) for name in NAMES] == [3, 3, 3]
    choice.end("c")
    assert choice.choose(NAMES) == "c"
    assert choice.choose(["a"]) == "a"


def test_an_engine_is_asked_again_after_its_pause() -> None:
    now = [100.0]
    reachable = Reachable(NAMES, 5, lambda: now[0])
    assert reachable.now() == list(NAMES)
    reachable.failed("b")
    assert reachable.now() == ["a", "c"]
    now[0] += 5
    assert reachable.now() == list(NAMES)
    reachable.failed("b")
    reachable.answered("b")
    assert reachable.now() == list(NAMES)
