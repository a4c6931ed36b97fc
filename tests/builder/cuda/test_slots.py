"""Slots: no two buffers that are needed at once share one, rows of a kind stay together, and the logits are alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwright.builder.emit.cuda.slots import Buffer, assign_slots


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_buffers_that_live_at_once_have_slots_of_their_own(data) -> None:
    count = data.draw(st.integers(1, 12))
    kinds = st.sampled_from(("tokens", "rows"))
    buffers = [Buffer(data.draw(kinds), data.draw(st.integers(1, 64))) for _ in range(count)]
    firsts = sorted(data.draw(st.lists(st.integers(0, 15), min_size=count, max_size=count)))
    lives = [(first, first + data.draw(st.integers(0, 6))) for first in firsts]
    uses = [{b for b, (first, last) in enumerate(lives) if at in (first, last)} for at in range(23)]
    kept = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True))
    slots, place = assign_slots(buffers, uses, kept)
    for a in range(count):
        assert slots[place[a]].rows == buffers[a].rows
        assert slots[place[a]].row_bytes >= buffers[a].row_bytes
        assert all((place[a] == place[b]) == (a == b) for b in kept)
        for b in range(a):
            apart = lives[a][1] < lives[b][0] or lives[b][1] < lives[a][0]
            assert apart or place[a] != place[b]


def test_a_chain_needs_two_slots() -> None:
    """Each result is written while its operand is read; the operand's slot is free after that."""
    uses = [{0}, {0, 1}, {1, 2}, {2, 3}, {3, 4}]
    slots, place = assign_slots([Buffer("tokens", 4)] * 4 + [Buffer("tokens", 4)], uses, kept=[4])
    assert len(slots) == 3
    assert place == (1, 2, 1, 2, 0)
