"""Runs made-up requests through the served engine and notes when each token arrived."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorwright import errors
from tensorwright.errors import EngineStoppedError, InvalidOptionError
from tensorwright.options.bench import LoadFields
from tensorwright.options.declare import flag_of
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.options.speculation import read_speculation
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.options import RuntimeOptions
from tensorwright.runtime.engine.trace_file import TraceFile
from tensorwright.runtime.requests.native_sampling import make_sampling
from tensorwright.runtime.requests.prompts import CheckedRequest
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.sizes import parse_size

POLL = 0.5  # the most seconds of one wait


@dataclass(frozen=True)
class Load(LoadFields):
    """The load of a benchmark: the fields of LoadFields, and options of LLM."""

    threads: int | None = None
    load: str = "map"
    numa: str = "auto"
    kv_cache_memory: str | None = None
    max_num_tokens: int | None = None
    speculative: str | None = None
    trace: str | None = None
    rank_timeout: float = 300.0
    devices: str | None = None
    gpu_memory: float | None = None

    def check(self, engine: EngineDir) -> None:
        for name in ("input_len", "output_len", "batch_size", "requests", "max_num_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InvalidOptionError(f"{flag_of(name)} must be positive, got {getattr(self, name)}")
        for name in ("warmup", "seed"):
            if getattr(self, name) < 0:
                raise InvalidOptionError(f"{flag_of(name)} must not be negative, got {getattr(self, name)}")
        if self.input_len + self.output_len > engine.max_seq_len:
            raise InvalidOptionError(
                f"--input-len and --output-len together must be at most the engine's max_seq_len "
                f"{engine.max_seq_len}, got {self.input_len} + {self.output_len}: lower one, or build the engine "
                "with a larger --max-seq-len"
            )

    def prompts(self, engine: EngineDir, count: int, part: int = 0) -> list[np.ndarray]:
        """Returns `count` prompts of random ids, int32 [input_len]. The same seed and part give the same prompts."""
        rng = np.random.default_rng([self.seed, part])
        return [rng.integers(0, engine.vocab_size, self.input_len, dtype=np.int32) for _ in range(count)]


@dataclass
class Trace:
    """The times at which a request was submitted and at which each of its tokens came, in seconds of one clock."""

    submitted: float
    tokens: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        return self.tokens[0] - self.submitted

    @property
    def per_token(self) -> float:
        """The mean seconds of a token after the first; 0 if there is none."""
        return (self.tokens[-1] - self.tokens[0]) / max(1, len(self.tokens) - 1)

    @property
    def gaps(self) -> list[float]:
        return np.diff(self.tokens).tolist()

    @property
    def whole(self) -> float:
        return self.tokens[-1] - self.submitted


class BenchEngine:
    """A running engine without a prefix cache, so that it computes every prompt. Close it, or use it as a context
    manager."""

    def __init__(self, engine: EngineDir, load: Load, queue: int):
        """Starts the engine. queue: the number of requests that are submitted at once."""
        asked = None if load.kv_cache_memory is None else parse_size(load.kv_cache_memory)
        batch, tokens = load.batch_size, load.max_num_tokens
        if tokens is not None or batch > DEFAULT_LIMITS["max_num_tokens"]:
            tokens = max(tokens or 0, batch)
        options = RuntimeOptions(
            kv_cache_bytes=asked,
            max_batch_size=batch,
            max_num_tokens=tokens,
            max_prefill_chunk=None,
            max_prompt_logprob_rows=1,
            threads=load.threads,
            load=load.load,
            numa=load.numa,
            enable_prefix_caching=False,
            max_queue_size=queue,
            speculation=read_speculation(load.speculative, "--"),
            trace=load.trace,
            rank_timeout=load.rank_timeout,
            devices=load.devices,
            gpu_memory=load.gpu_memory,
        )
        params = SamplingParams(max_tokens=load.output_len, ignore_eos=True, detokenize=False)
        self._request = CheckedRequest(None, [], params, load.output_len, [])
        self._trace = None if load.trace is None else TraceFile(load.trace)
        self._name = str(engine.path)
        try:
            self._native, self.options = native.start_engine(engine, options)
        except BaseException:
            if self._trace is not None:
                self._trace.discard()
            raise
        self._next_id = 1

    def run(self, prompts: Sequence[np.ndarray]) -> list[Trace]:
        """Submits all prompts at once, waits for all requests, and returns their traces. Sampling is greedy, and no
        request ends before its last token."""
        sampling = make_sampling(self._request, [])
        traces: dict[int, Trace] = {}
        alive = set()
        for prompt in prompts:
            request, self._next_id = self._next_id, self._next_id + 1
            traces[request] = Trace(time.perf_counter())
            self._native.submit(request, prompt, sampling)
            alive.add(request)
        while alive:
            events = self._native.wait_events(POLL)
            now = time.perf_counter()
            if not events and self._native.stopped:
                raise EngineStoppedError(f"the engine stopped with {len(alive)} requests alive")
            for event in events:
                traces[event.request_id].tokens += [now] * len(event.tokens)
                if event.finish:
                    _check_end(event)
                    alive.discard(event.request_id)
        return list(traces.values())

    def profiled(self, prompts: Sequence[np.ndarray]) -> dict[str, Any]:
        """Runs the prompts and returns the profile of the steps, in the form of `LLM.get_profile`."""
        self._native.profile(True)
        self.run(prompts)
        self._native.profile(False)
        return native.read_profile(self._native)

    def stats(self) -> dict[str, Any]:
        return dict(self._native.stats())

    def speculation(self) -> dict[str, Any] | None:
        """Returns what became of the proposed tokens, in numbers of all rounds; None if nothing is proposed."""
        if self.options.speculation is None:
            return None
        stats = self._native.stats()
        return {
            name: stats[name] for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_at", "draft_seconds")
        }

    def close(self) -> None:
        self._native.shutdown(False, 30.0)
        if self._trace is not None:
            self._trace.write(self._native, self._name)
            self._trace = None

    def __enter__(self) -> BenchEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check_end(event: Any) -> None:
    if event.finish == "error":
        raise getattr(errors, event.error_type, errors.TensorwrightError)(event.error)
    if event.finish != "length":
        raise EngineStoppedError(f"a request of the benchmark ended early: {event.finish}")
