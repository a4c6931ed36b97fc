"""The one place that touches the C++ module's types. Imported first by whoever starts an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.errors import EngineError, InvalidOptionError, MissingDependencyError, OutOfMemoryError
from tensorwright.options.declare import check_values
from tensorwright.options.engine import EngineFields
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.memory import check_kv_bytes, default_kv_bytes, populated_bytes
from tensorwright.runtime.engine.targets import DEFAULT_LIMITS, TARGETS, require_cpu
from tensorwright.runtime.requests.prompts import CheckedRequest


@dataclass(frozen=True)
class RuntimeOptions:
    """Options of a running engine. None in a limit of steps, threads and enable_prefix_caching: until its target
    resolves them. max_prefill_chunk: None is max_num_tokens.
    """

    kv_cache_bytes: int
    max_batch_size: int | None
    max_num_tokens: int | None
    max_prefill_chunk: int | None
    max_prompt_logprob_rows: int
    threads: int | None
    load: str
    enable_prefix_caching: bool | None
    max_queue_size: int

    def __post_init__(self) -> None:
        check_values(self, EngineFields, prefix="LLM: ")
        tokens = DEFAULT_LIMITS["max_num_tokens"] if self.max_num_tokens is None else self.max_num_tokens
        if self.max_batch_size is not None and tokens < self.max_batch_size:
            raise InvalidOptionError(
                f"LLM: max_num_tokens must be at least max_batch_size ({self.max_batch_size}), for every running "
                f"request takes a token of each step, got {tokens}"
            )

    def with_limits(self, usual: Mapping[str, int]) -> RuntimeOptions:
        """With the usual limits of steps where none was given; a usual batch is no larger than the tokens of a step."""
        batch, tokens, chunk = self.max_batch_size, self.max_num_tokens, self.max_prefill_chunk
        tokens = usual["max_num_tokens"] if tokens is None else tokens
        batch = min(usual["max_batch_size"], tokens) if batch is None else batch
        chunk = tokens if chunk is None else chunk
        return replace(self, max_batch_size=batch, max_num_tokens=tokens, max_prefill_chunk=chunk)


def load_module() -> Any:
    try:
        from tensorwright.runtime import _runtime
    except ImportError as error:
        raise MissingDependencyError(
            f"the compiled runtime does not load ({error}); install tensorwright with pip, "
            "which compiles it, rather than running from the source folder"
        ) from error
    return _runtime


def start_engine(engine: EngineDir, options: RuntimeOptions, kv_cache_bytes: int | None) -> tuple[Any, RuntimeOptions]:
    """Sizes the KV cache (kv_cache_bytes: as asked, None: by itself) and starts the engine: it, and its options."""
    target = TARGETS[engine.target]
    options = target.resolve(options, engine)
    batch, tokens = options.max_batch_size, options.max_num_tokens
    assert batch is not None  # resolved
    assert tokens is not None
    if target.open_executor is None:
        asked = kv_cache_bytes
        size = default_kv_bytes(engine, batch) if asked is None else check_kv_bytes(asked, engine)
        options = replace(options, kv_cache_bytes=size)
        return create_engine(engine, options), options
    executor = target.open_executor(engine, options)
    try:
        size = executor.kv_cache_bytes(
            kv_cache_bytes,
            max_batch_size=batch,
            max_num_tokens=tokens,
            max_rows=min(batch + options.max_prompt_logprob_rows, tokens),
        )
        options = replace(options, kv_cache_bytes=size)
        return create_engine(engine, options, executor), options
    except BaseException:
        executor.close()
        raise


def create_engine(engine: EngineDir, options: RuntimeOptions, executor: Any = None) -> Any:
    """Starts the C++ engine, `_runtime.Engine`. executor: of targets other than cpu; it belongs to the engine then."""
    runtime = load_module()
    native = runtime.EngineOptions()
    native.kv_cache_bytes = options.kv_cache_bytes
    native.max_batch_size = options.max_batch_size
    native.max_num_tokens = options.max_num_tokens
    native.max_chunk = options.max_prefill_chunk
    native.max_prompt_rows = options.max_prompt_logprob_rows
    native.prefix_cache = options.enable_prefix_caching
    native.max_queue = options.max_queue_size
    native.threads = options.threads
    try:
        if executor is None:
            native.load = options.load
            native.populate_bytes = populated_bytes()
            started = runtime.Engine(str(engine.plan), str(engine.weights), native)
        else:
            started = runtime.Engine(executor, native)
    except MemoryError as error:
        if isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(
            f"{engine.path}: there is not enough memory to start with max_batch_size={options.max_batch_size} and "
            f"max_num_tokens={options.max_num_tokens}; lower them, or kv_cache_memory"
        ) from error
    try:
        engine.check_unchanged()
        _check_facts(engine, started.facts())
    except BaseException:
        started.shutdown(False)
        raise
    return started


def create_executor(engine: EngineDir, threads: int) -> Any:
    """Opens the plan and the weights to run steps by hand: `_runtime.CpuExecutor`. Its allocate() is yet to call."""
    require_cpu(engine, "running steps by hand")
    executor = load_module().CpuExecutor(str(engine.plan), str(engine.weights), threads, "map")
    engine.check_unchanged()
    _check_facts(engine, executor.facts())
    return executor


def _check_facts(engine: EngineDir, plan: dict[str, Any]) -> None:
    """config.json and the plan say the same, or they come from two builds."""
    plan, of = {**plan, "kv_block_bytes": sum(plan["block_bytes"])}, TARGETS[engine.target].files[-1]
    for key in ("vocab_size", "max_seq_len", "block_size", "kv_block_bytes"):
        if getattr(engine, key) != plan[key]:
            raise EngineError(
                f"{engine.path / 'config.json'}: {key} is {getattr(engine, key)}, but {plan[key]} in {of}: "
                f"files of two builds are mixed; {REMEDY}"
            )


def read_profile(engine: Any) -> dict[str, Any]:
    """What a `_runtime.Engine` measured, by phase: its steps, and each instruction's sums."""
    return {
        phase: {"steps": steps, "instructions": engine.profile_table(phase)}
        for phase, steps in engine.profile_steps().items()
    }


def make_sampling(request: CheckedRequest, eos_token_ids: list[int]) -> Any:
    """SamplingParams as the C++ engine takes them: `_runtime.Sampling`."""
    params = request.params
    sampling = load_module().Sampling()
    sampling.n = int(params.n)
    sampling.max_tokens = request.max_tokens
    sampling.min_tokens = int(params.min_tokens)
    sampling.temperature = float(params.temperature)
    sampling.top_k = max(0, int(params.top_k))
    sampling.top_p = float(params.top_p)
    sampling.min_p = float(params.min_p)
    sampling.repetition_penalty = float(params.repetition_penalty)
    sampling.presence_penalty = float(params.presence_penalty)
    sampling.frequency_penalty = float(params.frequency_penalty)
    sampling.logit_bias = params.biases
    sampling.bad_words = request.bad_words
    sampling.timeout_s = -1.0 if params.timeout is None else float(params.timeout)
    sampling.priority = int(params.priority)
    sampling.cache_salt = params.cache_salt or ""
    sampling.seed = None if params.seed is None else int(params.seed)
    sampling.stop_token_ids = list(params.stop_token_ids)
    sampling.ignore_eos = params.ignore_eos
    sampling.eos_token_ids = eos_token_ids
    sampling.logprobs = -1 if params.logprobs is None else int(params.logprobs)
    sampling.prompt_logprobs = -1 if params.prompt_logprobs is None else int(params.prompt_logprobs)
    sampling.guided = request.grammar is not None
    return sampling


def dispatch_choices() -> list[dict[str, Any]]:
    """Which kernel of each family this machine runs, and why the better ones were refused."""
    return [
        {"family": family, "taken": taken, "refused": list(refused)}
        for family, taken, refused in load_module().explain_dispatch()
    ]
