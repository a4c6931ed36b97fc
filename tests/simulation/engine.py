"""The real engine without its thread: an actor takes its turns, over an executor whose model everybody can compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simulation.baton import Simulation
from support.fake_runtime import EOS
from tensorwright.runtime import _runtime

BLOCK, LONGEST, VOCABULARY = 4, 64, 257
LETTERS = [*range(32, 58), EOS]
"""What the model says: A to Z as the toy's tokenizer numbers them, or the end."""


def letter(token: int) -> str:
    return "" if token == EOS else chr(token + 33)


def next_token(context: list[int]) -> int:
    return LETTERS[sum((token + 1) * (at + 3) for at, token in enumerate(context)) % len(LETTERS)]


def continuation(prompt: list[int], most: int, allowed: Sequence[int] = LETTERS) -> list[int]:
    """What the model generates, the end included. allowed: the rest is masked, and the first of all others taken."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < most and (len(tokens) == len(prompt) or tokens[-1] != EOS):
        token = next_token(tokens)
        tokens.append(token if token in allowed else min(allowed))
    return tokens[len(prompt) :]


class SimulatedExecutor:
    """Reads its context from its own paged cache. before: called at the start of each step and copy; it may raise."""

    def __init__(self, before: Callable[[str], None]):
        self._before = before
        self.cache = np.zeros((0, BLOCK), np.int64)
        self.closed = False

    def facts(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCABULARY,
            "max_seq_len": LONGEST,
            "block_size": BLOCK,
            "block_bytes": [1],
            "group_windows": [0],
        }

    def allocate(self, blocks: list[int], max_tokens: int, max_rows: int, max_seqs: int) -> None:
        self.cache = np.full((blocks[0], BLOCK), -(10**6), np.int64)

    def run(self, step: Any) -> Any:
        self._before("run")
        self.cache.reshape(-1)[step.slots(0)] = (step.token_ids.astype(np.int64) + 1) * (step.positions + 3)
        logits = np.zeros((len(step.logit_rows), VOCABULARY), np.float32)
        sequence_of = np.searchsorted(step.seq_starts, step.logit_rows, side="right") - 1
        for row, (token, sequence) in enumerate(zip(step.logit_rows, sequence_of, strict=True)):
            held = self.cache[step.block_tables(0)[sequence]].reshape(-1)
            logits[row, LETTERS[held[: step.positions[token] + 1].sum() % len(LETTERS)]] = 1.0
        return logits

    def copy_block(self, group: int, source: int, target: int) -> None:
        self._before("copy")
        self.cache[target] = self.cache[source]

    def close(self) -> None:
        assert not self.closed
        self.closed = True


class SteppedEngine:
    """As `_runtime.Engine` to its callers; where that would wait, the baton passes on."""

    def __init__(self, simulation: Simulation, executor: SimulatedExecutor, options: Any):
        self._simulation = simulation
        options.debug_stepped, options.threads = True, 1
        _runtime.hold_clock(simulation.now)
        self._engine = _runtime.Engine(executor, options)
        self._work = self._news = False
        simulation.spawn("engine", self._loop)

    def _loop(self) -> None:
        while not self.stopped:
            self._simulation.wait(lambda: self._work)
            self._work = False
            steps = self._engine.stats()["steps"]
            while self._turn():
                self._simulation.advance(self._simulation.random.choice((0.0, 0.001, 0.1)))
                self._simulation.pause()
                before, steps = steps, self._engine.stats()["steps"]
                if steps == before:  # all wait for masks: the engine's own thread would sleep until there is news
                    self._simulation.wait(lambda: self._work, 0.01)
                    self._work = False

    def _turn(self) -> bool:
        _runtime.hold_clock(self._simulation.now)
        went_on = self._engine.turn()
        self._news = True
        return went_on

    def _tell(self) -> None:
        self._work = True
        self._simulation.pause()

    def submit(self, *arguments: Any) -> None:
        self._simulation.pause()
        _runtime.hold_clock(self._simulation.now)
        self._engine.submit(*arguments)
        self._tell()

    def abort(self, request_id: int, completion: int = -1) -> bool:
        self._simulation.pause()
        alive = self._engine.abort(request_id, completion)
        self._tell()
        return alive

    def set_mask(self, *arguments: Any) -> bool:
        alive = self._engine.set_mask(*arguments)
        self._tell()
        return alive

    def take_notices(self) -> list[str]:
        return list(self._engine.take_notices())

    def wait_events(self, timeout_s: float) -> list[Any]:
        self._simulation.pause()
        end = self._simulation.now + timeout_s
        while True:
            self._news = False
            events = self._engine.wait_events(0)
            if events or self.stopped or self._simulation.now >= end:
                return events
            self._simulation.wait(lambda: self._news, end - self._simulation.now)

    def shutdown(self, drain: bool = True, timeout_s: float = -1.0) -> None:
        self._engine.begin_shutdown(drain)
        self._tell()
        if not drain or not self._simulation.wait(lambda: self.stopped, None if timeout_s < 0 else timeout_s):
            self._engine.begin_shutdown(False)
            self._tell()
            self._simulation.wait(lambda: self.stopped)
        self._engine.shutdown(False, 0)

    @property
    def stopped(self) -> bool:
        return self._engine.stopped

    @property
    def cause(self) -> str:
        return self._engine.cause

    @property
    def called_here(self) -> bool:
        return self._engine.called_here

    def stats(self) -> dict[str, Any]:
        return self._engine.stats()

    def facts(self) -> dict[str, Any]:
        return self._engine.facts()
