"""Long events come in parts, behind everybody else's short ones."""

from __future__ import annotations

from dataclasses import fields

from tensorwright.runtime import _runtime
from tensorwright.runtime.base.engine_event import EngineEvent
from tensorwright.runtime.requests.long_events import PART, LongEvents, parts


def event(request: int, tokens: int, finish: str = "", completion: int = 0) -> EngineEvent:
    ids = list(range(tokens))
    return EngineEvent(request, completion, ids, [[(token, -1.0, 1)] for token in ids], [[]], finish, stop_token=7)


def test_an_event_made_here_has_all_that_one_of_the_engine_has() -> None:
    names = {name for name in vars(_runtime.Event) if not name.startswith("_")}
    assert {field.name for field in fields(EngineEvent)} == names


def test_parts_tell_together_what_the_event_does() -> None:
    whole = event(1, 2 * PART + 3, "stop")
    told = list(parts(whole))
    assert [len(part.tokens) for part in told] == [PART, PART, 3]
    assert [token for part in told for token in part.tokens] == whole.tokens
    assert [table for part in told for table in part.logprobs] == whole.logprobs
    assert [part.finish for part in told] == ["", "", "stop"]
    assert [part.stop_token for part in told] == [-1, -1, 7]
    assert sum(len(part.prompt_logprobs) for part in told) == 1
    short = event(1, PART, "stop")
    assert list(parts(short)) == [short]


def test_others_go_first_and_one_request_stays_in_order() -> None:
    waiting = LongEvents()
    assert not waiting
    assert waiting.next_part() is None
    first, short = event(1, PART + 1), event(2, 3)
    assert waiting.keep([first, short]) == [short]
    later, other = event(1, 2, "length", completion=1), event(3, 1)
    assert waiting.keep([later, other]) == [other]
    told = []
    while (part := waiting.next_part()) is not None:
        told.append((part.completion, len(part.tokens), part.finish))
    assert told == [(0, PART, ""), (0, 1, ""), (1, 2, "length")]
    assert not waiting
    assert waiting.keep([later]) == [later]
