"""Finds stop strings in text that arrives in pieces of any size.

The result does not depend on the cuts of the text: it is the first place where any of the strings is complete, and the
longest of the strings that end there. The automaton of Aho and Corasick searches for all strings at once, so a
character of the text costs the same for one string as for a thousand.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class StopAutomaton:
    """The automaton of a request's stop strings. It is immutable, so all completions of the request share it.

    A state is a number and stands for one prefix of the stop strings; state 0 is the empty prefix. The automaton takes
    some 20 bytes per character of the stop strings.

    depths: for each state, the length of its prefix in characters.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._letters = [""]  # for each state, the character that leads to it from its parent
        self._parents = array("i", [-1])
        self._branches: dict[tuple[int, str], int] = {}  # (parent, letter) -> child, if that is not parent + 1
        self.depths = array("i", [0])
        self._ends = array("i", [-1])  # for each state, the number of the longest stop string that is complete in it
        for number in range(len(stops)):
            self._add(number)
        self._fallbacks = array("i", [0]) * len(self._letters)
        for state in sorted(range(1, len(self._letters)), key=self.depths.__getitem__):
            self._link(state)

    def step(self, state: int, letter: str) -> int:
        """Returns the state after one more character: the longest prefix with which the text then ends.

        A step can fall back several times, but never more often in total than there were steps before.
        """
        while (child := self._child(state, letter)) < 0:
            if state == 0:
                return 0
            state = self._fallbacks[state]
        return child

    def complete(self, state: int) -> str | None:
        """Returns the longest stop string with which the text ends in this state, None if there is none."""
        number = self._ends[state]
        return None if number < 0 else self._stops[number]

    def _child(self, state: int, letter: str) -> int:
        """Returns the state that `letter` leads to, -1 if there is none."""
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
        """Sets the fallback of a state: the longest proper suffix of its prefix that is a prefix too. States of lesser
        depth must be linked first."""
        parent = self._parents[state]
        if parent > 0:
            self._fallbacks[state] = self.step(self._fallbacks[parent], self._letters[state])
        if self._ends[state] < 0:
            self._ends[state] = self._ends[self._fallbacks[state]]


class StopStrings:
    """The search for stop strings in one completion. It holds back text that may be the start of a stop string."""

    def __init__(self, automaton: StopAutomaton, include: bool):
        self._automaton = automaton
        self._include = include
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Returns the text that is certain to be output, and the stop string that ends it, None if none is complete."""
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
        """Returns the text that was held back. The caller has no more text."""
        text, self._held, self._state = self._held, "", 0
        return text
