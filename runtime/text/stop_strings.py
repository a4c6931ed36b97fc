"""Finding stop strings in text that comes in pieces of any size.

What is found does not depend on how the text is cut up: the first place where any of the strings is complete; of
several that end there, the longest. All strings are looked for at once, by the automaton of Aho and Corasick, so that a
character of the text costs the same whether there is one string or a thousand.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class StopAutomaton:
    """States are numbers, one for each beginning of a stop string; 0 is the empty one. Immutable once made, so that the
    completions of a request share it. It takes some 20 bytes per character of the stop strings.

    depths: characters of the beginning that a state stands for.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._letters = [""]  # that leads to a state
        self._parents = array("i", [-1])
        self._branches: dict[tuple[int, str], int] = {}  # to states that do not come right after their parent
        self.depths = array("i", [0])
        self._ends = array("i", [-1])  # the number of the longest stop string that is complete in a state
        for number in range(len(stops)):
            self._add(number)
        self._fallbacks = array("i", [0]) * len(self._letters)
        for state in sorted(range(1, len(self._letters)), key=self.depths.__getitem__):
            self._link(state)

    def step(self, state: int, letter: str) -> int:
        """The longest beginning that the text then ends with. Falling back is paid for by earlier steps."""
        while (child := self._child(state, letter)) < 0:
            if state == 0:
                return 0
            state = self._fallbacks[state]
        return child

    def complete(self, state: int) -> str | None:
        """The longest stop string that the text then ends with."""
        number = self._ends[state]
        return None if number < 0 else self._stops[number]

    def _child(self, state: int, letter: str) -> int:
        """-1 if there is none."""
        after = state + 1
        if after < len(self._letters) and self._letters[after] == letter and self._parents[after] == state:
            return after
        return self._branches.get((state, letter), -1)

    def _add(self, number: int) -> None:
        state = 0
        for letter in self._stops[number]:
            child = self._child(state, letter)
            if child < 0:
                child = len(self._letters)
                if child != state + 1:
                    self._branches[state, letter] = child
                self._letters.append(letter)
                self._parents.append(state)
                self.depths.append(self.depths[state] + 1)
                self._ends.append(-1)
            state = child
        self._ends[state] = number

    def _link(self, state: int) -> None:
        """Its fallback is the longest of its proper ends that is a beginning too. Lesser depths come first."""
        parent = self._parents[state]
        if parent > 0:
            self._fallbacks[state] = self.step(self._fallbacks[parent], self._letters[state])
        if self._ends[state] < 0:
            self._ends[state] = self._ends[self._fallbacks[state]]


class StopStrings:
    """One completion's. Text that may be the start of a stop string is held back until that is decided."""

    def __init__(self, automaton: StopAutomaton, include: bool):
        self._automaton = automaton
        self._include = include
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that is certain to be output, and the stop string that ends it, if one is complete."""
        before, state, automaton = self._held, self._state, self._automaton
        for at, character in enumerate(text):
            state = automaton.step(state, character)
            stop = automaton.complete(state)
            if stop is not None:
                self._held, self._state = "", 0
                whole = before + text[: at + 1]
                return whole if self._include else whole[: len(whole) - len(stop)], stop
        self._state = state
        text = before + text
        held = automaton.depths[state]
        self._held = text[len(text) - held :]
        return text[: len(text) - held], None

    def flush(self) -> str:
        """What was held back, for nothing follows it."""
        text, self._held, self._state = self._held, "", 0
        return text
