"""Pinned prefixes, from LLM to the file: they stay whatever comes, within their room, and over a restart."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from support.toy_engine import write_toy_engine
from support.waiting import wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, InvalidRequestError, PromptTooLongError, UnknownPrefixError

PREFIX = list(range(1, 101))  # 100 tokens, 3 blocks and a part
BLOCKS, BLOCK_BYTES = 12, 16384


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_engine(tmp_path_factory.mktemp("pins") / "engine")


def start(engine: Path, **options: Any) -> LLM:
    """An engine with so few blocks that a few prompts push everything out."""
    usual = {"threads": 1, "kv_cache_memory": "192KiB", "pinned_prefix_memory": "80KiB", "max_num_tokens": 64}
    return LLM(engine, **{**usual, "max_batch_size": 2, **options})


def ask(llm: LLM, ids: list[int], salt: str | None = None) -> Any:
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, cache_salt=salt)
    return llm.generate({"prompt_token_ids": ids}, params)


def push_out(llm: LLM) -> None:
    """Asks prompts that have nothing in common, more than the cache can remember."""
    before = llm.get_stats()["evictions"]
    for first in range(101, 111):
        ask(llm, [first, *range(60)])
    assert llm.get_stats()["evictions"] > before


def test_a_pinned_prefix_stays_and_others_go(engine: Path) -> None:
    with start(engine) as llm:
        expected = ask(llm, [*PREFIX, 7]).outputs[0].token_ids
        push_out(llm)
        assert ask(llm, [*PREFIX, 7]).metrics.cached_tokens == 0
        pin = llm.pin_prefix("rules", {"prompt_token_ids": PREFIX})
        assert (pin.name, pin.tokens, pin.pinned, llm.pinned_prefixes) == ("rules", 96, True, [pin])
        push_out(llm)
        again = ask(llm, [*PREFIX, 7])
        assert (again.metrics.cached_tokens, again.outputs[0].token_ids) == (96, expected)
        stats = llm.get_stats()
        assert (stats["pinned_prefixes"], stats["pinned_bytes"], stats["used_blocks"]) == (1, 3 * BLOCK_BYTES, 3)
        llm.unpin_prefix("rules")
        assert llm.pinned_prefixes == []
        wait_until(lambda: llm.get_stats()["used_blocks"] == 0)
        push_out(llm)
        assert ask(llm, [*PREFIX, 7]).metrics.cached_tokens == 0
        with pytest.raises(UnknownPrefixError, match="'rules'"):
            llm.unpin_prefix("rules")


def test_room_is_bounded_and_shared_blocks_count_once(engine: Path) -> None:
    with start(engine) as llm:
        llm.pin_prefix("one", {"prompt_token_ids": PREFIX})
        llm.pin_prefix("longer", {"prompt_token_ids": [*PREFIX[:64], *range(40)]})  # one block more
        wait_until(lambda: llm.get_stats()["pinned_bytes"] == 4 * BLOCK_BYTES)
        with pytest.raises(InvalidRequestError, match="must fit 5 blocks of 32 tokens"):
            llm.pin_prefix("other", {"prompt_token_ids": list(range(150, 214))})
        llm.pin_prefix("one", {"prompt_token_ids": list(range(200, 232))})  # in place of the old one, whose third goes
        assert [(pin.name, pin.tokens) for pin in llm.pinned_prefixes] == [("longer", 96), ("one", 32)]
        wait_until(lambda: llm.get_stats()["pinned_bytes"] == 4 * BLOCK_BYTES)
        with pytest.raises(InvalidRequestError, match="one at least, got 31 tokens"):
            llm.pin_prefix("short", {"prompt_token_ids": PREFIX[:31]})


def test_what_pins_may_hold_is_no_requests(engine: Path) -> None:
    """Whether it is pinned or not: of 12 blocks of 32 tokens, 2 are left."""
    with start(engine, pinned_prefix_memory="160KiB") as llm:
        llm.pin_prefix("rules", {"prompt_token_ids": PREFIX[:60]})
        assert len(ask(llm, [5] * (2 * 32 - 3)).outputs[0].token_ids) == 4
        with pytest.raises(PromptTooLongError):
            ask(llm, [5] * (2 * 32 - 2))


def test_a_prefix_is_pinned_for_its_salt(engine: Path) -> None:
    with start(engine) as llm:
        llm.pin_prefix("rules", {"prompt_token_ids": PREFIX}, cache_salt="mine")
        push_out(llm)
        found = [ask(llm, [*PREFIX, 7], salt).metrics.cached_tokens for salt in ("mine", "yours", None)]
        assert found == [96, 0, 0]


def test_pins_outlive_the_engine_with_a_disk(engine: Path, tmp_path: Path) -> None:
    disk = {"prefix_cache_disk": tmp_path}
    with start(engine, **disk) as llm:
        llm.pin_prefix("rules", {"prompt_token_ids": PREFIX}, cache_salt="mine")
        llm.pin_prefix("gone", {"prompt_token_ids": list(range(200, 232))})
        llm.unpin_prefix("gone")
    (file,) = tmp_path.glob("pins-*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with start(engine, **disk) as llm:
        assert [(pin.name, pin.tokens, pin.salt) for pin in llm.pinned_prefixes] == [("rules", 96, "mine")]
        wait_until(lambda: llm.pinned_prefixes[0].pinned)
        assert llm.get_stats()["prefix_fetch_tokens"] >= 64, "the blocks came from the disk"
        push_out(llm)
        assert ask(llm, [*PREFIX, 7], "mine").metrics.cached_tokens == 96
    file.write_text("{")
    with start(engine, **disk) as llm:
        assert llm.pinned_prefixes == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable_prefix_caching": False}, "which is off"),
        ({"pinned_prefix_memory": "192KiB"}, "must be less than kv_cache_memory, 192.0 KiB"),
        ({"pinned_prefix_memory": "1KiB"}, "must hold 1 to 11 blocks"),
        ({"pinned_prefix_memory": 0}, "must be a positive number"),
    ],
)
def test_what_cannot_be_is_refused(engine: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        start(engine, **options)


def test_an_engine_without_room_pins_nothing(engine: Path) -> None:
    with start(engine, pinned_prefix_memory=None) as llm:
        with pytest.raises(InvalidRequestError, match="start it with pinned_prefix_memory"):
            llm.pin_prefix("rules", {"prompt_token_ids": PREFIX})
        with pytest.raises(InvalidRequestError, match="exactly one of prompt and messages"):
            llm.pin_prefix("rules")
