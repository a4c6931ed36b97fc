"""Faults for a server under soak: benchmarks/soak.py runs this file first (--plant), and must then report each of them.

A token is pressed on every third request, every request leaves memory and a file behind, every
50th fails in a way that nobody foresaw, and every 30th answer is not counted.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

from tensorwright import LLM
from tensorwright.runtime.serving.server.exposition import HttpMetrics

KEPT: list[object] = []
STARTED, ANSWERED = itertools.count(1), itertools.count(1)
generate = LLM.generate_async
observe = HttpMetrics.observe


def generate_async(self: LLM, prompt: Any, params: Any, *arguments: Any, **keywords: Any) -> Any:
    number = next(STARTED)
    KEPT.append(b"a" * (2 << 20))
    os.open(os.devnull, os.O_RDONLY)
    if number % 50 == 0:
        raise RuntimeError("planted")
    if number % 3 == 0 and params.beam_width == 1:
        params = replace(params, logit_bias={**(params.logit_bias or {}), 400 + number % 100: 50.0})
    return generate(self, prompt, params, *arguments, **keywords)


def observe_most(self: HttpMetrics, scope: Any, status: int, seconds: float) -> None:
    if next(ANSWERED) % 30:
        observe(self, scope, status, seconds)


LLM.generate_async = generate_async  # type: ignore[method-assign]
HttpMetrics.observe = observe_most  # type: ignore[method-assign]
