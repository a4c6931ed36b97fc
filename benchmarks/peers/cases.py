"""Lists the cases that are measured, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """steps 0: prefill of `prompt` tokens. Else decode of `steps` tokens in each of `batch` sequences after it."""

    name: str
    prompt: int
    batch: int = 1
    steps: int = 0

    def job(self, seed: int) -> dict[str, Any]:
        return {"job": "run", "prompt": self.prompt, "batch": self.batch, "steps": self.steps, "seed": seed}

    def tokens_per_second(self, answer: dict[str, Any]) -> float:
        if self.steps == 0:
            return self.batch * self.prompt / answer["prefill_seconds"]
        return self.batch * self.steps / answer["decode_seconds"]


FULL = (
    Case("prefill 128", 128),
    Case("prefill 512", 512),
    Case("prefill 2048", 2048),
    Case("decode, batch 1", 128, 1, 32),
    Case("decode, batch 4", 128, 4, 16),
    Case("decode, batch 16", 128, 16, 16),
    Case("decode, batch 1 after 4096", 4096, 1, 16),
)
QUICK = (
    Case("prefill 512", 512),
    Case("decode, batch 1", 128, 1, 32),
    Case("decode, batch 4", 128, 4, 16),
    Case("decode, batch 16", 128, 16, 16),
)
CHECK = Case("check", 32, 8)
"""A case before the rounds. It wakes the worker, and its first tokens show whether all run the same model."""
WARM = (CHECK, Case("warm prefill", 512), Case("warm decode", 32, 1, 4), Case("warm batch", 32, 16, 2))


def interleaved(rounds: int, cases: Sequence[Case], sides: Sequence[T]) -> Iterator[tuple[int, Case, T]]:
    """Yields A B C A B C ...: in each round all sides run a case one after the other, so that drift of the machine
    affects them alike."""
    for round_ in range(rounds):
        for case in cases:
            for side in sides:
                yield round_, case, side


def seed_of(round_: int, case: Case) -> int:
    """Returns a seed: equal for all sides, different in every round and case, so that no cache of prefixes helps."""
    return 1000 * (round_ + 1) + sum(case.name.encode())
