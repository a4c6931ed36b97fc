"""LLM: an engine that answers prompts. The Python door to the runtime."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, overload

from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.engine_format.engine_config import is_engine
from tensorwright.engine_format.file_names import CONFIG
from tensorwright.engine_format.kv_cache import KV_CACHE_DTYPES
from tensorwright.errors import InvalidOptionError, InvalidRequestError
from tensorwright.runtime.api.llm_tokenizer import LLMTokenizer
from tensorwright.runtime.api.model_cache import BuildChoices, engine_for_model, open_cached
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.base.progress import progress_bar
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.options import DEFAULT_LIMITS, RuntimeOptions
from tensorwright.runtime.guided.reader import TIMES, vocabulary_reader
from tensorwright.runtime.requests.engine_client import EngineClient, Observer
from tensorwright.runtime.requests.generation_defaults import check_generation_config, sampling_defaults
from tensorwright.runtime.requests.native_sampling import make_sampling
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.prompts import (
    Capacity,
    CheckedRequest,
    Prompt,
    PromptDict,
    RenderedPrompt,
    check_request,
)
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.sizes import parse_size


class LLM(StrictKeywords):
    """A running engine. Thread-safe; use it as a context manager, or call `shutdown`. It works in the process that made
    it: a fork of that process gets ForkedEngineError from every call but `shutdown`, which does nothing there.

    model: an engine, or a Hugging Face model directory, which is built once and kept in the user's
        cache (this needs the build extra).
    kv_cache_memory: bytes or text such as "512MiB"; None: half of the memory that the weights leave free (as the
        control group limits it), at most what a full batch of the longest sequences can use.
    max_batch_size: most completions that run at once; None: 64, or max_num_tokens where that is less. max_num_tokens:
        most tokens of one step, prompt chunks included; None: 512. A TensorRT engine that was built for less has that
        as its default.
    max_prefill_chunk: most tokens of one prompt in one step, so that long prompts delay the others less; None: no cap.
    max_prompt_logprob_rows: most prompt tokens that one step scores for prompt_logprobs; each takes the memory of a row
        of logits, once it is used.
    threads: None: one per physical core that this process may use. On a GPU they only draw the tokens.
    load: "map" the weights (shared with other processes, read as needed) or "copy" them into private memory; the
        choice is of target cpu alone.
    enable_prefix_caching: keep keys and values of finished prompts for later ones with the same beginning. None: where
        the engine's target can, which all but onnx do.
    guided_vocabulary: when the vocabulary is read for guided decoding, which may take seconds: "lazy", at the first
        guided request, or "eager", in a thread that starts as soon as the engine is there. No other request waits.
    max_queue_size: requests that may wait; one more raises QueueFullError (`generate` waits instead).
    dtype: of a build from a model directory: "auto", "float32" or "bfloat16" (short names: "bf16", "fp32").
    quantize: of a build from a model directory: formats of the weights, as `build` takes them ("int4", "int8:g64",
        "w8a8", "int4,lm_head=int8"); None keeps them in dtype.
    kv_cache_dtype: of a build from a model directory: "auto", the type of the activations, or "int8".
    chat_template: what `chat` and the server use unless a call says otherwise: Jinja text instead of the model's, or
        the name of one of the model's templates. None: the model's own, chosen as transformers does.
    generation_config: whose sampling defaults hold where a call has no parameters: "model", those that its
        generation_config.json names, or "neutral", those of SamplingParams alone.
    Raises EngineError, InvalidOptionError, OutOfMemoryError, MissingDependencyError.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        kv_cache_memory: str | int | None = None,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
        max_prompt_logprob_rows: int = 64,
        threads: int | None = None,
        load: str = "map",
        enable_prefix_caching: bool | None = None,
        guided_vocabulary: str = "lazy",
        max_queue_size: int = 1024,
        dtype: str = "auto",
        quantize: str | None = None,
        kv_cache_dtype: str = "auto",
        chat_template: str | None = None,
        generation_config: str = "model",
    ):
        if chat_template is not None:
            from tensorwright.runtime.text.chat_template import (
                check_argument,  # Jinja is imported only where it is needed
            )

            check_argument(chat_template)
        check_generation_config(generation_config)
        asked = None if kv_cache_memory is None else parse_size(kv_cache_memory)
        options = RuntimeOptions(
            kv_cache_bytes=asked,
            max_batch_size=max_batch_size,
            max_num_tokens=max_num_tokens,
            max_prefill_chunk=max_prefill_chunk,
            max_prompt_logprob_rows=max_prompt_logprob_rows,
            threads=threads,
            load=load,
            enable_prefix_caching=enable_prefix_caching,
            max_queue_size=max_queue_size,
        )
        if guided_vocabulary not in TIMES:
            raise InvalidOptionError(f"guided_vocabulary must be one of {', '.join(TIMES)}, got {guided_vocabulary!r}")
        path = _path_of(model)
        if is_model(path):  # its build may take minutes: what it cannot have is refused before
            options = options.with_limits(DEFAULT_LIMITS)
        self.engine, self._lease = _engine_of(path, BuildChoices(dtype, quantize, kv_cache_dtype))
        if chat_template is not None:
            from tensorwright.runtime.api.chat import check_choice

            check_choice(self.engine, chat_template)
        self.chat_template = chat_template
        self.sampling_defaults = sampling_defaults(self.engine, generation_config)
        engine, self.options = native.start_engine(self.engine, options)
        self._client = EngineClient(engine)
        self._finalizer = weakref.finalize(self, self._client.close_dropped)
        self._finalizer.atexit = False  # the client itself closes then
        stats = self._client.stats()
        groups = tuple((group["window"], group["total_blocks"]) for group in stats["groups"])
        self._capacity = Capacity(groups, stats["block_size"], self.options.max_batch_size)
        if guided_vocabulary == "eager":
            vocabulary_reader(self.engine).start()

    @overload
    def generate(  # type: ignore[overload-overlap]  # a string is a sequence of strings too; this one comes first
        self,
        prompts: str | PromptDict | RenderedPrompt,
        sampling_params: SamplingParams | None = None,
        *,
        progress: bool = False,
    ) -> RequestOutput: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]: ...

    def generate(self, prompts: Any, sampling_params: Any = None, *, progress: bool = False) -> Any:
        """Generates for one prompt or many, and waits for all.

        One prompt (a string or a dict) gives one RequestOutput, a list gives a list in the same order. Parameters:
        one for all prompts, or a list with one per prompt. Every prompt is checked before any work starts; if a
        request fails later, the others are aborted and its error is raised. progress: a bar on standard error.
        sampling_params: None: default_sampling_params.
        """
        self._client.check_process()
        single = isinstance(prompts, (str, bytes, dict)) or not hasattr(prompts, "__iter__")
        requests = self._check_all([prompts] if single else list(prompts), sampling_params)
        handles: list[RequestHandle] = []
        try:
            with progress_bar("generating", len(requests), progress) as advance:
                for request in requests:
                    handles.append(self._submit(request, wait_for_room=True))
                outputs = []
                for handle in handles:
                    outputs.append(handle.result())
                    advance(1)
        except BaseException:  # an interrupt too: nothing may go on unseen
            for handle in handles:
                handle.abort()
            raise
        return outputs[0] if single else outputs

    def chat(
        self,
        messages: Any,
        sampling_params: Any = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        template_variables: dict[str, Any] | None = None,
        progress: bool = False,
    ) -> Any:
        """Answers a conversation, or a list of conversations, as `generate` answers prompts.

        messages: dicts with "role" and "content", handed to the model's chat template as they are, but that the role
        "developer" becomes "system" where the template does not know it. A name that the template does not read is
        refused. chat_template: Jinja text instead of the model's, or the name of one of the model's templates.
        add_generation_prompt: end with the start of the assistant's answer. template_variables: what else the template
        looks at, such as tools or enable_thinking; tools and documents that it never reads are refused.
        """
        from tensorwright.runtime.api.chat import (  # Jinja takes as long to import as all else
            chat_prompt,
            is_conversation,
        )

        self._client.check_process()
        template = self.chat_template if chat_template is None else chat_template
        single = is_conversation(messages)
        prompts: list[Any] = [
            chat_prompt(self.engine, each, template, add_generation_prompt, template_variables or {})
            for each in ([messages] if single else messages)
        ]
        return self.generate(prompts[0] if single else prompts, sampling_params, progress=progress)

    def generate_async(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestHandle:
        """Starts one request and returns at once; see RequestHandle. Raises typed errors before work starts."""
        self._client.check_process()
        params = self.default_sampling_params if sampling_params is None else sampling_params
        return self._submit(check_request(prompt, params, self.engine, self._capacity))

    def abort(self, request_id: int) -> bool:
        """Ends a request soon, from any thread: it finishes with finish_reason "abort" and what it has. False if it has
        ended, or never was."""
        return self._client.abort_for_caller(request_id)

    def get_stats(self) -> dict[str, Any]:
        """Counters of the running engine: blocks, queue lengths, steps, tokens, preemptions, prefix hits."""
        return self._client.stats()

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What holds where a call has no parameters: the model's defaults over those of SamplingParams. Parameters that
        are given hold as a whole: to change one of these, take dataclasses.replace."""
        return SamplingParams(**self.sampling_defaults)

    @property
    def tokenizer(self) -> LLMTokenizer:
        """Text to token ids and back: encode, decode, count. InvalidRequestError for an engine without a tokenizer."""
        return LLMTokenizer(self.engine)

    @property
    def max_seq_len(self) -> int:
        """Most tokens of a request, prompt and output together, that the engine was built for."""
        return self.engine.max_seq_len

    @property
    def running(self) -> bool:
        """Whether it takes requests: it was not shut down, and its loop is alive."""
        return self._client.running

    @property
    def stalled_seconds(self) -> float:
        """For how long it has had requests, and has ended no step nor made anything for any of them; 0 without
        requests. One that grows beyond the longest step tells of an engine that is stuck. It costs nothing to ask."""
        return self._client.stalled_seconds

    def add_observer(self, observer: Observer) -> None:
        """observer(output, error) is called for every request that ends from now on, in the thread that all requests
        wait for, so it must be quick. error: what the request raises; output then holds what it had."""
        self._client.add_observer(observer)

    def profile(self, enable: bool) -> None:
        """Measures every instruction of the steps that follow, from zero, or stops. It costs less than a microsecond
        each."""
        self._client.profile(enable)

    def get_profile(self) -> dict[str, Any]:
        """What was measured, by phase ("prefill", "decode", "mixed"): "steps" (steps, tokens, sequences, rows, ns) and
        "instructions", for each its name, op, calls, ns, bytes and ops (operations)."""
        return self._client.read_profile()

    def shutdown(self, drain: bool = False, timeout: float = 30.0) -> None:
        """Stops the engine; a second call does nothing. drain: let requests finish first, for `timeout` seconds;
        those that are left raise RequestAbortedError where they are waited for."""
        self._client.close(drain, timeout)
        vocabulary_reader(self.engine).close()
        if self._lease is not None:
            self._lease.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def _check_all(self, prompts: list[Prompt], params: Any) -> list[CheckedRequest]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.default_sampling_params] * len(prompts)
        elif not isinstance(params, (list, tuple)) or len(params) != len(prompts):
            count = len(params) if isinstance(params, (list, tuple)) else repr(params)
            raise InvalidRequestError(
                f"sampling_params must be one SamplingParams or a list of one per prompt ({len(prompts)}), got {count}"
            )
        pairs = zip(prompts, params, strict=True)
        return [check_request(prompt, param, self.engine, self._capacity) for prompt, param in pairs]

    def _submit(self, request: CheckedRequest, wait_for_room: bool = False) -> RequestHandle:
        sampling = make_sampling(request, self.engine.eos_token_ids)
        tokenizer, params, grammar = self.engine.tokenizer, request.params, request.grammar
        first_mask = None if grammar is None else grammar.first_mask(params.ignore_eos)

        def make_state(request_id: int) -> RequestState:
            return RequestState(request_id, request.text, request.ids, params, tokenizer, grammar)

        return self._client.submit(make_state, sampling, wait_for_room, first_mask)


def is_model(path: Path) -> bool:
    """Whether it is a Hugging Face model directory, of which an engine is to be built."""
    # os.path's say False of a name that no file can have, where Path's raise.
    return os.path.isdir(path) and not is_engine(path) and os.path.exists(path / CONFIG)


def _path_of(model: str | Path) -> Path:
    if not isinstance(model, (str, Path)) or not str(model).strip():
        raise InvalidOptionError(f"LLM: must be given the path of an engine or of a model directory, got {model!r}")
    return Path(os.path.expanduser(model))


def _engine_of(path: Path, choices: BuildChoices) -> tuple[EngineDir, IO[str] | None]:
    """Opens the engine, or the cached engine of a model directory with what keeps it there."""
    dtype, quantize = choices.dtype, choices.quantize
    if quantize is not None and not (isinstance(quantize, str) and quantize.strip()):
        raise InvalidOptionError(f'quantize must name formats, as in "int4" or "w8a8,embedding=none", got {quantize!r}')
    if choices.kv_cache_dtype not in KV_CACHE_DTYPES:
        raise InvalidOptionError(
            f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPES)}, got {choices.kv_cache_dtype!r}"
        )
    if is_model(path):
        cached = engine_for_model(path, choices)
        return open_cached(cached.path), cached.lease
    engine = open_engine(path, read_tokenizer=True)
    if dtype not in ("auto", *DTYPES):
        raise InvalidOptionError(f"dtype must be one of auto, {', '.join(DTYPES)}, got {dtype!r}")
    if dtype not in ("auto", engine.dtype):
        raise InvalidOptionError(f"dtype={dtype!r}: {path} is an engine built as {engine.dtype}; build another one")
    if quantize is not None and choices.quantize_spec not in engine.quantize_specs.values():
        built = " or ".join(map(repr, engine.quantize_specs))
        built = f"built as {built}" if built else "without quantized weights"
        raise InvalidOptionError(f"quantize={quantize!r}: {path} is an engine {built}; build another one")
    if choices.kv_cache_dtype not in ("auto", engine.kv_cache_dtype):
        raise InvalidOptionError(
            f"kv_cache_dtype={choices.kv_cache_dtype!r}: {path} is an engine with a KV cache of "
            f"{engine.kv_cache_dtype!r}; build another one"
        )
    return engine, None
