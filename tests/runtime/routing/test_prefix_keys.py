"""Keys of prompts' beginnings: equal where the prefix cache would share, and nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorwright.runtime.routing.prefix_keys import MAX_KEYS, prefix_keys

BLOCK = 4
tokens = st.lists(st.integers(0, 3), max_size=24)


@given(tokens, tokens)
def test_as_many_keys_are_equal_as_whole_blocks_are(one: list[int], other: list[int]) -> None:
    first, second = prefix_keys(one, BLOCK), prefix_keys(other, BLOCK)
    shared = 0
    while shared < min(len(first), len(second)) and one[: (shared + 1) * BLOCK] == other[: (shared + 1) * BLOCK]:
        shared += 1
    assert first[:shared] == second[:shared]
    assert not set(first[shared:]) & set(second[shared:])


def test_the_block_of_the_last_token_has_no_key() -> None:
    """That token is computed in any case, so a prompt that is cached as a whole shares a block less."""
    assert len(prefix_keys([1] * 8, BLOCK)) == 1
    assert len(prefix_keys([1] * 9, BLOCK)) == 2
    assert prefix_keys([], BLOCK) == ()
    assert prefix_keys([1] * 9, BLOCK)[:1] == prefix_keys([1] * 5, BLOCK)


def test_salts_part_prompts() -> None:
    assert not set(prefix_keys([1] * 20, BLOCK, "a")) & set(prefix_keys([1] * 20, BLOCK, "b"))
    assert prefix_keys([1] * 20, BLOCK, "a") == prefix_keys([1] * 20, BLOCK, "a")


def test_a_long_prompt_has_so_many_keys_and_no_more() -> None:
    assert len(prefix_keys([1] * 10_000, BLOCK)) == MAX_KEYS
