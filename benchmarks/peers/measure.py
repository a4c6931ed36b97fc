"""Runs the comparison: starts and wakes workers one by one, then asks them in turn; only the asked one runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cases
import idle
from worker import PeerError, Worker


@dataclass
class Results:
    """rows: tokens per second by case, side and round; others: the fraction of the machine that others used."""

    rows: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    others: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    ceilings: list[dict[str, float]] = field(default_factory=list)
    idleness: list[idle.Idleness] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def wake(worker: Worker) -> list[int]:
    """Runs jobs that are not counted, to page in weights and compile kernels. Returns the check's first tokens."""
    answers = {case.name: worker.ask(case.job(cases.seed_of(0, case))) for case in cases.WARM}
    return answers[cases.CHECK.name]["tokens"]


def timed(worker: Worker, case: cases.Case, seed: int) -> tuple[float, float]:
    """Returns (tokens per second, fraction of the machine that others used)."""
    worker.resume()
    try:
        before, own, start = idle.read_busy(), worker.cpu_seconds(), time.process_time()
        answer = worker.ask(case.job(seed))
        own = worker.cpu_seconds() - own + time.process_time() - start
        return case.tokens_per_second(answer), idle.others_fraction(before, idle.read_busy(), own)
    finally:
        worker.pause()


def run_rounds(
    workers: dict[str, Worker],
    selected: Sequence[cases.Case],
    rounds: int,
    begin_round: Callable[[Results], None],
    say: Callable[[str], None],
) -> Results:
    """Runs sides and cases interleaved. A side that fails is left out from then on, with its reason."""
    results = Results()
    begun = -1
    for round_, case, side in cases.interleaved(rounds, selected, list(workers)):
        if round_ > begun:
            begin_round(results)
            begun = round_
        if side in results.failed:
            continue
        try:
            rate, others = timed(workers[side], case, cases.seed_of(round_, case))
        except PeerError as error:
            results.failed[side] = f"{case.name}: {error}"
            say(f"{side} is out: {results.failed[side]}")
            continue
        results.rows.setdefault(case.name, {}).setdefault(side, []).append(rate)
        results.others.setdefault(case.name, {}).setdefault(side, []).append(others)
        say(f"round {round_ + 1}/{rounds}  {case.name:28}{side:28}{rate:10.1f}")
    return results


def finish(workers: dict[str, Worker], failed: dict[str, str]) -> dict[str, Any]:
    """Returns the peak memory of each side that still lives, and ends all sides."""
    peaks = {}
    for side, worker in workers.items():
        worker.resume()
        try:
            if side not in failed:
                peaks[side] = worker.ask({"job": "memory"})["peak_bytes"]
        except PeerError as error:
            failed[side] = str(error)
        finally:
            worker.close()
    return peaks
