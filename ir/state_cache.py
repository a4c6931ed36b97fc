"""Defines the states of one recurrent layer in plain numpy, for the interpreter and the references of operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class StateCache:
    """The states of one layer by slot. What arrays a state has is its operation's choice, the same for every slot."""

    slots: Mapping[int, Arrays] = field(default_factory=dict)

    def write(self, states: Mapping[int, Arrays]) -> StateCache:
        """Returns a copy in which these slots hold other states."""
        return StateCache({**self.slots, **states})

    def copy_slot(self, source: int, target: int) -> StateCache:
        """Returns a copy in which slot `target` holds what slot `source` holds."""
        return self.write({target: self.slots[source]})

    def read_batch(
        self, seq_starts: np.ndarray, context_lens: np.ndarray, state_slots: np.ndarray, zero: Arrays
    ) -> Iterator[tuple[int, int, int, Arrays]]:
        """Yields for each sequence of a step its slot, its first row and the end of its rows, and its state before.

        The state is `zero` for a sequence whose first row has position 0, whatever the slot holds. Sequences without
        rows are left out. Raises KeyError for a slot that holds nothing.
        """
        for seq, slot in enumerate(int(slot) for slot in state_slots):
            begin, end = int(seq_starts[seq]), int(seq_starts[seq + 1])
            if begin < end:
                starts = int(context_lens[seq]) == end - begin
                yield slot, begin, end, zero if starts else self.slots[slot]
