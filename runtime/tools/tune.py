"""Measures how many threads, and how finely cut products, make an engine fastest on this machine.

A stage tries a few values of one choice, with all others as they were found best so far. The values take turns, and
each is judged by its fastest runs, in two halves of the rounds apart: a value is taken if it is better in both, by
LEAST_GAIN and by what the halves of one and the same value differ. So something else that had the processor for a while
decides nothing. The best of a stage goes on to the next.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorwright.engine_format.kv_cache import step_end
from tensorwright.runtime.base.host import default_threads
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.tuning import Tuning

LEAST_GAIN = 1.03
FACTORS = (0.25, 0.5, 2.0, 4.0)
"""What the default of a size is multiplied with."""
LEAST_ROUNDS = 4
HALVES = (slice(0, None, 2), slice(1, None, 2))
"""Of the rounds."""
MOST_PROMPT_S = 1.0
"""The most seconds of a prompt's step: a slow model gets a shorter prompt."""


@dataclass(frozen=True)
class Work:
    """A kind of step. context: positions that are in the cache. tokens: those of each sequence in the step."""

    name: str
    sequences: int
    context: int
    tokens: int


@dataclass(frozen=True)
class Setting:
    threads: int
    work_cut: tuple[tuple[str, int], ...] = ()

    def with_cut(self, name: str, value: int) -> Setting:
        return replace(self, work_cut=tuple(sorted({**dict(self.work_cut), name: value}.items())))


Times = dict[str, list[float]]
"""The seconds of the runs of each kind of step, in the order of the rounds."""


def works_for(max_seq_len: int, prompt: int = 512, stop: int = 0) -> list[Work]:
    """Returns the kinds of steps. stop: see step_end."""
    context = min(256, max_seq_len - 1)
    return [
        Work("decode 1", 1, context, 1),
        Work("decode 16", 16, context, 1),
        Work("prompt", 1, 0, step_end(0, min(prompt, max_seq_len), stop)),
    ]


class Steps:
    """Runs steps of an engine with one number of threads. Memory is taken for the largest of the works."""

    def __init__(self, engine: EngineDir, threads: int, works: list[Work]):
        self._executor = native.create_executor(engine, threads)
        facts = self._executor.facts()
        self._block, self._groups = engine.block_size, len(facts["group_windows"])
        self._states = facts["state_bytes"] > 0
        self._cut: tuple[tuple[str, int], ...] = ()
        blocks = max(work.sequences * self._blocks(work) for work in works)
        seqs = max(work.sequences for work in works)
        tokens = max(work.sequences * work.tokens for work in works)
        self._executor.allocate([blocks] * self._groups, tokens, seqs, seqs, seqs * self._states)
        self._inputs = {work.name: self._step(work, engine.vocab_size) for work in works}

    def _blocks(self, work: Work) -> int:
        return -(-(work.context + work.tokens) // self._block)

    def _step(self, work: Work, vocab: int) -> tuple[Any, ...]:
        """Returns the arguments of CpuExecutor.step: each sequence has its own blocks, its last token gets logits."""
        end = work.context + work.tokens
        tables = np.arange(work.sequences * self._blocks(work), dtype=np.int32).reshape(work.sequences, -1)
        positions = np.arange(work.context, end)
        slots = (tables[:, positions // self._block] * self._block + positions % self._block).astype(np.int32)
        return (
            np.random.default_rng(0).integers(0, vocab, work.sequences * work.tokens).astype(np.int32),
            np.tile(positions, work.sequences).astype(np.int32),
            (np.arange(work.sequences + 1) * work.tokens).astype(np.int32),
            np.full(work.sequences, end, np.int32),
            (np.arange(1, work.sequences + 1) * work.tokens - 1).astype(np.int32),
            [(tables, slots.reshape(-1))] * self._groups,
            np.arange(work.sequences * self._states, dtype=np.int32),
        )

    def seconds(self, work: str, cut: tuple[tuple[str, int], ...]) -> float:
        if cut != self._cut:
            self._executor.set_work_cut(dict(cut))
            self._cut = cut
        begin = time.perf_counter()
        self._executor.step(*self._inputs[work])
        return time.perf_counter() - begin


def compare(
    settings: list[Setting], works: list[str], run: Callable[[str, Setting], float], seconds: float
) -> list[Times]:
    """Runs the works with all settings in turns, for about so many seconds, in an even number of rounds."""
    times: list[Times] = [{work: [] for work in works} for _ in settings]
    begin, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or rounds % 2 or time.perf_counter() - begin < seconds:
        for work in works:
            for i in range(len(settings)):
                place = (i + rounds) % len(settings)
                times[place][work].append(run(work, settings[place]))
        rounds += 1
    return times


def gain(times: Times, before: Times) -> float:
    """Returns how many times as fast the works are as before, as the geometric mean over them, in the worse half of
    the rounds."""
    halves = []
    for half in HALVES:
        ratios = [math.log(min(before[work][half]) / min(times[work][half])) for work in times]
        halves.append(math.exp(sum(ratios) / len(ratios)))
    return min(halves)


def scatter(times: Times) -> float:
    """Returns by what factor the halves of the rounds differ, as the geometric mean over the works."""
    one, other = HALVES
    ratios = [abs(math.log(min(runs[one]) / min(runs[other]))) for runs in times.values()]
    return math.exp(sum(ratios) / len(ratios))


def best_of(times: list[Times]) -> int:
    """Returns the place of the best, which is 0 unless another one is better than it beyond doubt."""
    gains = [1.0, *(gain(one, times[0]) for one in times[1:])]
    best = max(range(len(gains)), key=gains.__getitem__)
    return best if gains[best] >= LEAST_GAIN * max(scatter(times[0]), scatter(times[best])) else 0


def thread_choices(cores: int, processors: int) -> list[int]:
    """Returns the numbers of threads to try, the default first."""
    powers = [1 << i for i in range(cores.bit_length())]
    return [cores, *sorted({*powers, cores // 2, processors} - {cores, 0})]


def tune(engine: EngineDir, seconds: float, ended: Callable[[], None] = lambda: None) -> Tuning:
    """Returns the best choices on this machine, measured in about `seconds`, or in LEAST_ROUNDS of each value.

    ended: is called at the end of each of stage_names().
    """
    cores = default_threads()
    works = works_for(engine.max_seq_len, stop=engine.chunk_stop)
    opened = {cores: Steps(engine, cores, works)}
    opened[cores].seconds("decode 1", ())  # it touches memory for the first time
    first = opened[cores].seconds("prompt", ())
    if first > MOST_PROMPT_S:
        works = works_for(engine.max_seq_len, max(64, int(512 * MOST_PROMPT_S / first)), engine.chunk_stop)
        opened = {cores: Steps(engine, cores, works)}
    names = [work.name for work in works]

    def run(work: str, setting: Setting) -> float:
        if setting.threads not in opened:
            opened[setting.threads] = Steps(engine, setting.threads, works)
            opened[setting.threads].seconds(work, ())  # it touches memory for the first time
        return opened[setting.threads].seconds(work, setting.work_cut)

    default = best = Setting(cores)
    stages = stage_names()
    for stage in stages[:-1]:
        if stage == "threads":
            tried = [Setting(threads) for threads in thread_choices(cores, len(os.sched_getaffinity(0)))]
        else:
            tried = [best, *(best.with_cut(stage, value) for value in cut_choices(stage))]
        if len(tried) > 1:
            best = tried[best_of(compare(tried, names, run, seconds / len(stages)))]
        for others in set(opened) - {default.threads, best.threads}:
            del opened[others]  # they have caches of their own
        ended()
    times = compare([default] if best == default else [default, best], names, run, seconds / len(stages))
    ended()
    if gain(times[-1], times[0]) < 1:
        best, times = default, times[:1]
    measured = {work: {"default": min(times[0][work]), "tuned": min(times[-1][work])} for work in names}
    threads = None if best.threads == default.threads else best.threads
    return Tuning(*native.this_machine(), threads, dict(best.work_cut), measured)


def stage_names() -> list[str]:
    return ["threads", *native.work_cut_defaults(), "together"]


def cut_choices(name: str) -> list[int]:
    """Returns the values of a size that are tried besides the default."""
    default = native.work_cut_defaults()[name]
    return [max(1, int(default * factor)) for factor in FACTORS]
