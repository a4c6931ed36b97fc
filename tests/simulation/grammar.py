"""A grammar that everybody can compute: some letters, and the end. Its matchers take their time, and may panic."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from simulation.baton import Simulation
from simulation.engine import LETTERS, VOCABULARY

ALLOWED = LETTERS[::2]
LOWEST = min(ALLOWED)
"""What the toy's executor says where its token is forbidden: all others are as likely, and the first is taken."""


class Vocabulary:
    """As what guided_vocabulary() gives of an engine: it compiles whatever it is given to the one grammar."""

    def __init__(self, simulation: Simulation, panics: float, panic: type[BaseException]):
        self._simulation, self._panics, self._panic = simulation, panics, panic
        bits = np.zeros((VOCABULARY + 31) // 32 * 32, np.uint8)
        bits[ALLOWED] = 1
        self.mask = np.packbits(bits, bitorder="little").view(np.uint32)

    def compile(self, params: Any, deadline: float | None = None) -> Vocabulary:
        self._simulation.wait(lambda: False, self._simulation.random.choice((0.0, 0.1)))
        return self

    def first_mask(self, ignore_eos: bool) -> Any:
        return self.mask

    def start(self, ignore_eos: bool) -> Matcher:
        return Matcher(self)

    def masked(self) -> Any:
        """One mask, after a while."""
        draw = self._simulation.random
        if draw.random() < 0.3:
            self._simulation.wait(lambda: False, draw.choice((0.0, 0.001, 0.3)))
        if draw.random() < self._panics:
            raise self._panic("made-up")
        return self.mask.copy()


class Matcher:
    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self.budget = SimpleNamespace(
            slow=vocabulary._simulation.random.random() < 0.5, left=1e9, pay=lambda seconds: True
        )
        self.generated, self.ended, self.foresees = 0, False, False
        self.lock = nullcontext()  # two threads never compute masks of one completion here

    def take_foreseen(self, tokens: Sequence[int]) -> bool:
        return False

    def advance(self, tokens: Sequence[int]) -> Any:
        self.generated += len(tokens)
        return self._vocabulary.masked()

    def cancel(self) -> None:
        """Only who closes calls it, for a matcher has all the time; what runs then goes on to its end."""
