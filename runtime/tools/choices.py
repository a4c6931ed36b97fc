"""Computes the log-likelihood of each of a question's choices, given the context, with the engine's own executor.

Questions run side by side, each in a place of its own; a place whose question is answered takes the next at once. The
context's keys and values are computed once: each choice begins at the last token of the context, and overwrites what
the choice before it left behind that. The states of recurrent layers cannot be taken back so, so a model with such
layers computes the context anew for each choice. Neither the company in a step nor its chunks change a bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorwright.engine_format.kv_cache import step_end
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.tools.evaluate import step_tokens

MAX_PLACES = 64
"""The most questions that run side by side."""
MAX_CACHE_BYTES = 512 << 20
"""The most bytes of the cache of all places, unless one question alone takes more."""
STEP_TOKENS = 512
"""The most tokens of a step, enough for the best speed of the kernels."""


@dataclass(frozen=True)
class Question:
    """context: at least one token. choices: for each choice its tokens, at least one."""

    context: list[int]
    choices: list[list[int]]

    @property
    def longest(self) -> int:
        """The tokens of the context and its longest choice."""
        return len(self.context) + max(len(choice) for choice in self.choices)


@dataclass
class _Place:
    """The question that runs in a place. choice: the number of its present choice. done: the positions that are
    computed of the context with this choice."""

    number: int
    question: Question
    choice: int = 0
    done: int = 0
    logprobs: list[list[float]] = field(default_factory=lambda: [[]])

    @property
    def tokens(self) -> list[int]:
        return self.question.context + self.question.choices[self.choice]

    def next_choice(self, *, anew: bool, block: int) -> bool:
        """Goes on to the next choice. anew: its context must be computed again; otherwise only the part of it is that
        lies in the last token's block of `block` positions. Returns False after the last choice."""
        self.choice += 1
        self.done = 0 if anew else (len(self.question.context) - 1) // block * block
        self.logprobs.append([])
        return self.choice < len(self.question.choices)


@dataclass(frozen=True)
class _Span:
    """The positions [begin, end) of a place that one step computes, of which those from `scored` on have a logprob."""

    place: int
    begin: int
    end: int
    scored: int


class ChoiceScorer:
    """Scores questions of up to `longest` tokens."""

    def __init__(self, engine: EngineDir, longest: int, threads: int, places: int = MAX_PLACES) -> None:
        self._executor = native.create_executor(engine, threads)
        facts = self._executor.facts()
        self._sparse = facts["sparse_prefill"] > 0
        self._block = engine.block_size
        self._blocks = -(-longest // self._block)  # the blocks of one place
        self._groups = len(facts["group_windows"])
        self._has_states = facts["state_bytes"] > 0
        self._stop = facts["chunk_stop"]
        size = self._blocks * sum(facts["block_bytes"]) + facts["state_bytes"]
        self._places = max(1, min(places, MAX_CACHE_BYTES // size))
        self._rows = step_tokens(engine.vocab_size)
        blocks = [self._blocks * self._places] * self._groups
        slots = self._places if self._has_states else 0
        self._executor.allocate(blocks, STEP_TOKENS, self._rows, self._places, slots)

    def score(self, questions: Sequence[Question]) -> Iterator[tuple[int, list[float]]]:
        """Yields the number of each question and the log-likelihoods of its choices, in the order in which they end.

        A log-likelihood is the sum of the natural logarithms of its tokens' probabilities.
        """
        waiting = iter(enumerate(questions))
        running = [_Place(number, question) for number, question in _first(waiting, self._places)]
        places = list(range(len(running)))
        while running:
            spans = self._plan(running)
            parts = self._run(running, spans, places)
            for span, part in zip(spans, parts, strict=True):
                place = running[span.place]
                place.logprobs[-1] += part
                place.done = span.end
            for i, place in enumerate(running):
                if place.done < len(place.tokens) - 1:
                    continue
                if place.next_choice(anew=self._has_states, block=self._block if self._sparse else 1):
                    continue
                yield place.number, [float(np.sum(of_choice)) for of_choice in place.logprobs[:-1]]
                following = next(waiting, None)
                running[i] = _Place(*following) if following is not None else place
            kept = [i for i, place in enumerate(running) if place.choice < len(place.question.choices)]
            running, places = [running[i] for i in kept], [places[i] for i in kept]

    def _plan(self, running: list[_Place]) -> list[_Span]:
        """Returns what the next step computes: of each place what is left of its choice, as far as there is room."""
        tokens, rows, spans = STEP_TOKENS, self._rows, []
        for i, place in enumerate(running):
            # The last token of a choice predicts nothing, so it is not computed.
            first, last = len(place.question.context) - 1, len(place.tokens) - 1
            end = min(last, place.done + tokens, max(first, place.done) + rows)
            end = step_end(place.done, end, self._stop)
            if self._sparse and end <= first:
                end -= end % self._block  # Rows of a context choose what they see in whole blocks.
            if end > place.done:
                scored = min(end, max(first, place.done))
                spans.append(_Span(i, place.done, end, scored))
                tokens, rows = tokens - (end - place.done), rows - (end - scored)
        return spans

    def _run(self, running: list[_Place], spans: list[_Span], places: list[int]) -> list[list[float]]:
        """Computes one step. Returns the logprobs of each span. places: the place of each running question."""
        whole = [running[span.place].tokens for span in spans]
        tables = np.array([self._table(places[span.place]) for span in spans], np.int32)
        positions = [np.arange(span.begin, span.end) for span in spans]
        blocks = [table[where // self._block] for table, where in zip(tables, positions, strict=True)]
        slots = [block * self._block + where % self._block for block, where in zip(blocks, positions, strict=True)]
        starts = np.concatenate([[0], np.cumsum([len(where) for where in positions])]).astype(np.int32)
        rows = [np.arange(a + s.scored - s.begin, b) for s, a, b in zip(spans, starts[:-1], starts[1:], strict=True)]
        scores = self._executor.score(
            np.concatenate([ids[s.begin : s.end] for ids, s in zip(whole, spans, strict=True)]).astype(np.int32),
            np.concatenate(positions).astype(np.int32),
            starts,
            np.array([span.end for span in spans], np.int32),
            np.concatenate(rows).astype(np.int32),
            [(tables, np.concatenate(slots).astype(np.int32))] * self._groups,
            [token for ids, s in zip(whole, spans, strict=True) for token in ids[s.scored + 1 : s.end + 1]],
            [places[span.place] for span in spans] if self._has_states else [],
            [len(running[span.place].question.context) for span in spans] if self._sparse else [],
        )
        ends = np.cumsum([len(of_span) for of_span in rows])
        return [part.tolist() for part in np.split(np.array(scores), ends[:-1])]

    def _table(self, place: int) -> np.ndarray:
        return np.arange(place * self._blocks, (place + 1) * self._blocks)


def _first(items: Iterator[tuple[int, Question]], count: int) -> list[tuple[int, Question]]:
    return [item for _, item in zip(range(count), items, strict=False)]
