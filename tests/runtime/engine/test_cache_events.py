"""Events of the prefix cache, through LLM: whoever replays them knows what the cache has, also after a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.toy_engine import write_toy_engine
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.runtime.requests.cache_events import CacheEvent, CacheEvents

BLOCK = 32
KEPT = 200


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_engine(tmp_path_factory.mktemp("events") / "engine")


@pytest.fixture(scope="module")
def llm(engine: Path) -> Iterator[LLM]:
    """Its KV cache has 12 blocks, its memory as many more."""
    options = {"kv_cache_memory": "192KiB", "prefix_cache_memory": "192KiB", "max_num_tokens": 64, "max_batch_size": 2}
    with LLM(engine, threads=1, cache_events=KEPT, **options) as llm:
        yield llm


def ask(llm: LLM, ids: list[int], salt: str | None = None) -> Any:
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, cache_salt=salt)
    return llm.generate({"prompt_token_ids": ids}, params)


@dataclass
class Reader:
    """Follows an engine. content: the last event of each block that is there, by tier, group and name."""

    llm: LLM
    limit: int = 7
    after: str | None = None
    content: dict[tuple[str, int, str], CacheEvent] = field(default_factory=dict)
    lost: list[int | None] = field(default_factory=list)

    def read(self) -> CacheEvents:
        found = self.llm.cache_events(self.after, limit=self.limit)
        self.after = found.next
        if found.lost != 0:
            self.lost.append(found.lost)
            assert found.events[0].type == "cleared"
        for event in found.events:
            place = (event.tier, event.group, event.block)
            if event.type == "cleared":
                self.content.clear()
            elif event.type == "stored":
                self.content[place] = event
            else:
                self.content.pop(place, None)
        return found

    def read_all(self) -> dict[tuple[str, int, str], CacheEvent]:
        while self.read().more:
            pass
        return self.content


def counts(content: dict[tuple[str, int, str], CacheEvent]) -> dict[str, int]:
    return {tier: sum(place[0] == tier for place in content) for tier in ("cache", "memory", "disk")}


def test_replayed_events_are_the_content(llm: LLM) -> None:
    early = Reader(llm)
    early.read_all()
    for first in range(20):
        ask(llm, [first, *range(60)], "mine" if first % 2 else None)
        early.read()
    late, stats = Reader(llm, limit=3), llm.get_stats()
    content = early.read_all()
    assert content.keys() == late.read_all().keys()
    assert counts(content) == {
        "cache": stats["cached_blocks"], "memory": stats["tier_memory_blocks"], "disk": 0,
    }  # fmt: skip
    assert min(stats["cached_blocks"], stats["tier_memory_blocks"], stats["evictions"]) > 5
    assert (early.lost, late.lost) == ([], [])


def test_stored_blocks_are_chains_of_tokens(llm: LLM) -> None:
    prompt = [99, *range(70)]
    ask(llm, prompt)
    reader = Reader(llm)
    reader.read_all()
    first = next(event for event in reader.content.values() if event.token_ids == tuple(prompt[:BLOCK]))
    second = next(event for event in reader.content.values() if event.parent == first.block)
    assert (first.parent, second.token_ids) == (None, tuple(prompt[BLOCK : 2 * BLOCK]))
    assert (first.salt, first.adapter, first.tier, first.group) == (None, None, "cache", 0)
    ask(llm, prompt, "mine")
    salted = [event for event in llm.cache_events(reader.after).events if event.type == "stored" and event.token_ids]
    assert [event.token_ids for event in salted] == [first.token_ids, second.token_ids]
    assert salted[0].block != first.block
    assert salted[0].salt == salted[1].salt
    assert salted[0].salt not in (None, "mine")


def test_a_reader_that_is_too_slow_is_told_so_and_begins_again(llm: LLM) -> None:
    slow, quick = Reader(llm), Reader(llm)
    slow.read_all()
    quick.read_all()
    number = 0
    while number <= KEPT:  # events, not prompts
        ask(llm, [number % 250, *range(60)])
        number += len(quick.read().events)
    assert slow.read_all().keys() == quick.read_all().keys()
    assert (quick.lost, len(slow.lost)) == ([], 1)
    assert slow.lost[0] is not None
    assert slow.lost[0] > KEPT


def test_another_engine_begins_anew(llm: LLM, engine: Path) -> None:
    with LLM(engine, threads=1, kv_cache_memory="192KiB", cache_events=KEPT) as other:
        reader = Reader(other, after=llm.cache_events().next)
        assert (reader.read_all(), reader.lost) == ({}, [None])


def test_a_wait_ends_with_the_first_event_or_its_time(llm: LLM) -> None:
    reader = Reader(llm)
    reader.read_all()
    nothing = llm.cache_events(reader.after, wait=0.01)
    assert (nothing.events, nothing.next, nothing.lost, nothing.more) == ((), reader.after, 0, False)
    handle = llm.generate_async({"prompt_token_ids": [*range(200, 250)]}, SamplingParams(max_tokens=1))
    assert llm.cache_events(reader.after, wait=60).events
    handle.result()


@pytest.mark.parametrize(
    "after", ["", "x", "0123456789abcdef", "0123456789abcdef-1-9-0-0-0", "-".join(["0" * 16, "9" * 19])]
)
def test_what_is_no_cursor_is_refused(llm: LLM, after: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"after must be \"next\" of an answer"):
        llm.cache_events(after)


def test_a_cursor_of_the_future_and_odd_limits_are_refused(llm: LLM) -> None:
    epoch = llm.cache_events().next.split("-")[0]
    with pytest.raises(InvalidRequestError, match="begin again without one"):
        llm.cache_events(f"{epoch}-999999999")
    for limit in (0, 1001):
        with pytest.raises(InvalidRequestError, match="limit must be 1 to 1000"):
            llm.cache_events(limit=limit)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_events": 0}, "from 1 to 1048576"),
        ({"cache_events": 10, "enable_prefix_caching": False}, "which is off"),
    ],
)
def test_what_cannot_be_is_refused(engine: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        LLM(engine, threads=1, kv_cache_memory="192KiB", **options)


def test_an_engine_without_the_option_tells_nothing(toy_engine: Path) -> None:
    with (
        LLM(toy_engine, threads=1, kv_cache_memory="1MiB") as llm,
        pytest.raises(InvalidRequestError, match="start it with cache_events"),
    ):
        llm.cache_events()
