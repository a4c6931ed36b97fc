"""Measures what the steps of an engine cost on this machine, by requests through the engine as LLM serves them.

The time of a step lasts from its begin to the begin of the next one. So planning, drawing tokens, and what Python does
with them meanwhile are in it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.simulate.replica_shape import ReplicaShape, shape_of_engine
from tensorwright.insight.simulate.step_costs import StepCosts, StepSample, fit_costs
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import EngineOptions, RuntimeOptions
from tensorwright.runtime.engine.trace_file import SHARE, STEP, Span
from tensorwright.runtime.requests.engine_client import EngineClient
from tensorwright.runtime.requests.native_sampling import make_sampling
from tensorwright.runtime.requests.prompts import CheckedRequest
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tensorwright.runtime import _runtime

SECONDS = 10.0
"""About how long is measured, unless an option says otherwise."""
LONG_PROMPT = 1024
"""Tokens of the longest measured prompt."""
ANSWER = 12
"""Tokens of the shortest measured answer. The longest has twice as many."""
MAX_PROMPTS = 8192
"""Tokens of all prompts of the largest round."""
MIN_ROUNDS = 4
"""The rounds that run in any case, beside the first."""


class SteppedClient:
    """An engine that keeps what its steps were, and a client of it as LLM has. Close it at the end.

    engine: it must have been started with trace_steps. options: those that it runs with.
    """

    def __init__(self, engine: _runtime.Engine, options: EngineOptions):
        self._native, self.options = engine, options
        self._client = EngineClient(engine)
        self.shape = shape_of_engine(engine.facts(), engine.stats(), options)

    def submit(self, prompt: list[int], answer: int) -> RequestHandle:
        """Submits a request of exactly `answer` tokens, drawn greedily."""
        params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True, detokenize=False)
        request = CheckedRequest(None, prompt, params, answer, [])
        sampling = make_sampling(request, [])

        def make_state(request_id: int) -> RequestState:
            return RequestState(request_id, None, prompt, params, None)

        return self._client.submit(make_state, sampling, True, None)

    def stop(self) -> list[Span]:
        """Ends the engine and returns the spans of its steps. Raises InvalidOptionError if there were too many."""
        self._client.close(True)
        rows, dropped = self._native.timeline()
        if dropped:
            raise InvalidOptionError(f"the engine made {dropped} steps more than can be kept; measure for less time")
        return [Span(*row) for row in rows.tolist()]

    def close(self) -> None:
        self._client.close()


@contextmanager
def stepped_client(engine: EngineDir, options: RuntimeOptions) -> Iterator[SteppedClient]:
    client = SteppedClient(*native.start_engine(engine, replace(options, trace_steps=True)))
    try:
        yield client
    finally:
        client.close()


def measure_costs(
    engine: EngineDir, options: RuntimeOptions, seconds: float = SECONDS
) -> tuple[ReplicaShape, StepCosts]:
    """Returns what a replica of the engine is, and what its steps cost here. seconds: about how long to measure; the
    last round may take longer. Nothing else should run meanwhile."""
    with stepped_client(engine, options) as client:
        shape, rng = client.shape, np.random.default_rng(0)
        rounds = _rounds(shape)
        until = time.perf_counter() + seconds
        # The first round touches memory for the first time, and does not count.
        for number in itertools.count():
            if number > MIN_ROUNDS and time.perf_counter() > until:
                break
            _run_round(client, rounds[max(0, number - 1) % len(rounds)], engine.vocab_size, rng)
        spans = client.stop()
    first = min(span.id for span in spans if span.kind == SHARE)
    samples = samples_of(spans, shape, first + len(rounds[0]))
    threads = client.options.threads
    plural = "" if threads == 1 else "s"
    source = f"{len(samples)} steps of {engine.path} measured on this machine with {threads} thread{plural}"
    return shape, fit_costs(samples, source)


Round = list[tuple[int, int]]
"""Requests that are submitted at once: tokens of prompt and answer of each."""


def _rounds(shape: ReplicaShape) -> list[Round]:
    """Returns rounds whose steps differ in tokens, sequences and contexts, those with the fewest tokens first.

    They are companies of each size with short and with longer prompts, and long prompts alone."""
    longest = min(LONG_PROMPT, shape.max_seq_len - 2 * ANSWER, shape.positions // 2 - 2 * ANSWER)
    if longest < 2:
        raise InvalidOptionError(
            f"a model of {shape.max_seq_len} positions, with a KV cache of {shape.positions}, is too small to measure"
        )
    batches = [1 << power for power in range(11) if 1 << power <= shape.max_batch_size]
    rounds: list[Round] = []
    for prompt in sorted({min(longest, 8), min(longest, 64), longest}):
        for batch in batches:
            if batch * (prompt + 2 * ANSWER) <= shape.positions and batch * prompt <= MAX_PROMPTS:
                rounds.append([(max(1, prompt - i % 5), ANSWER + i * ANSWER // batch) for i in range(batch)])
    for prompt in (longest // 4, longest // 2):
        if prompt > 1:
            rounds.append([(prompt, 2)])
    return sorted(rounds, key=lambda requests: sum(map(sum, requests)))


def _run_round(client: SteppedClient, requests: Round, vocabulary: int, rng: np.random.Generator) -> None:
    handles = [client.submit(rng.integers(0, vocabulary, prompt).tolist(), answer) for prompt, answer in requests]
    for handle in handles:
        handle.result()


def samples_of(spans: list[Span], shape: ReplicaShape, first_request: int = 0) -> list[StepSample]:
    """Returns the steps of spans with their times. A step is left out if the engine may have been idle behind it: if no
    request waited, and none of its own was in the next step. So are steps of requests before `first_request`."""
    steps = sorted((span for span in spans if span.kind == STEP), key=lambda span: span.begin)
    shares = sorted((span for span in spans if span.kind == SHARE), key=lambda span: span.begin)
    by_step = {begin: list(group) for begin, group in itertools.groupby(shares, key=lambda span: span.begin)}
    samples = []
    for step, following in itertools.pairwise(steps):
        parts = by_step[step.begin]
        ids = {part.id for part in parts}
        goes_on = step.d > 0 or not ids.isdisjoint(part.id for part in by_step[following.begin])
        if not goes_on or min(ids) < first_request:
            continue
        pairs, reads = shape.attention([(part.a, part.b + part.a) for part in parts])
        samples.append(StepSample(step.a, step.b, step.c, pairs, reads, (following.begin - step.begin) * 1e-9))
    return samples


def measured_options(values: dict[str, Any], kv_cache_bytes: int | None) -> RuntimeOptions:
    """Returns the options of an engine that is measured. values: the options of EngineFields that a simulation has, by
    name."""
    return RuntimeOptions(
        kv_cache_bytes=kv_cache_bytes,
        max_batch_size=values["max_batch_size"],
        max_num_tokens=values["max_num_tokens"],
        max_prefill_chunk=values["max_prefill_chunk"],
        max_prompt_logprob_rows=1,
        threads=values.get("threads"),
        load="map",
        enable_prefix_caching=values["enable_prefix_caching"],
        max_queue_size=values["max_queue_size"],
    )
