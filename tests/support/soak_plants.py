"""Faults for a server under soak: benchmarks/soak.py runs this file first (--plant), and must then report each of them.

Every 20th request gets another seed than it asked for, every request leaves memory, a file and a count behind, and
every 50th body fails in a way that nobody foresaw.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

from tensorwright import LLM
from tensorwright.runtime.serving.server.exposition import HttpMetrics

KEPT: list[object] = []
NUMBERS = itertools.count(1)
generate = LLM.generate_async
observe = HttpMetrics.observe


def generate_async(self: LLM, prompt: Any, params: Any, *arguments: Any, **keywords: Any) -> Any:
    number = next(NUMBERS)
    KEPT.append(b"a" * (1 << 20))
    os.open(os.devnull, os.O_RDONLY)
    if number % 50 == 0:
        raise RuntimeError("planted")
    if number % 20 == 0:
        params = replace(params, temperature=2.0, seed=number)
    return generate(self, prompt, params, *arguments, **keywords)


def observe_most(self: HttpMetrics, scope: Any, status: int, seconds: float) -> None:
    if next(NUMBERS) % 30:
        observe(self, scope, status, seconds)


LLM.generate_async = generate_async  # type: ignore[method-assign]
HttpMetrics.observe = observe_most  # type: ignore[method-assign]
