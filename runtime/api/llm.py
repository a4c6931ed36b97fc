"""Defines LLM, an engine that answers prompts. It is the Python interface of the runtime.

It has more than 500 lines because LLM's docstring says what each of its options does.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, overload

from tensorwright.durations import parse_duration
from tensorwright.errors import InvalidRequestError, TemporarilyUnavailableError
from tensorwright.options.build import BuildFields
from tensorwright.options.build_choices import BuildChoices
from tensorwright.options.declare import Door, find, options_in
from tensorwright.options.engine import DEFAULT_LIMITS, EngineFields
from tensorwright.options.speculation import read_speculation
from tensorwright.runtime.api.llm_tokenizer import LLMTokenizer
from tensorwright.runtime.api.open_model import find_model, is_model, open_model
from tensorwright.runtime.base.keywords import StrictKeywords
from tensorwright.runtime.base.progress import progress_bar
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.adapters import AdapterTable, LoadedAdapter, check_adapters
from tensorwright.runtime.engine.options import RuntimeOptions
from tensorwright.runtime.engine.trace_file import TraceFile
from tensorwright.runtime.guided.reader import vocabulary_reader
from tensorwright.runtime.requests.cache_events import MAX_READ, CacheEvents, read_cache_events
from tensorwright.runtime.requests.engine_client import POLL, EngineClient, Observer
from tensorwright.runtime.requests.generation_defaults import check_generation_config, sampling_defaults
from tensorwright.runtime.requests.native_sampling import make_sampling
from tensorwright.runtime.requests.outputs import RequestOutput
from tensorwright.runtime.requests.pinned_prefixes import TRIES, PinnedPrefix, PinTable, computing_prefix
from tensorwright.runtime.requests.pooled_rows import EmbeddingWish, RankedDocument
from tensorwright.runtime.requests.pooling_params import PoolingParams
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
from tensorwright.runtime.requests.watchdog import watchdog_options
from tensorwright.sizes import parse_size


def _weak(method: Callable[[], None]) -> Callable[[], None]:
    """Returns a call of a method that does not keep its object alive, and does nothing once the object is gone."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := found()) is not None:
            alive()

    return call


def _bytes(size: str | int | None, name: str) -> int | None:
    return None if size is None else parse_size(size, name)


class LLM(StrictKeywords):
    """A running engine. It is thread-safe; use it as a context manager, or call `shutdown`.

    It works only in the process that made it. In a fork of that process every call raises ForkedEngineError, except
    `shutdown`, which does nothing there.

    model: an engine, a Hugging Face model directory, or a hub name such as org/name. An engine of a model is built once
        and kept in the user's cache (this needs the build extra).
    kv_cache_memory: bytes or a text such as "512MiB"; None means half of the memory that the weights leave free (within
        the control group's limit), at most what a full batch of the longest sequences can use. The states of recurrent
        layers are a part of it.
    max_batch_size: the most completions that run at once; None means 64, or max_num_tokens if that is less. A TensorRT
        engine that was built for less has that as its default.
    max_num_tokens: the most tokens of one step, with prompt chunks; None means 512. A TensorRT engine that was built
        for less has that as its default.
    max_prefill_chunk: the most tokens of one prompt in one step, so that long prompts delay other requests less; None
        means no limit of its own.
    itl_goal: the longest time between two tokens of a completion, in seconds or as a text such as "50ms". Steps then
        compute only as many tokens of prompts beside running completions, and as many completions run, as keeps 99 of
        100 such times within it, by what steps take. None means no goal. It changes no request's tokens.
    priority_ageing: a request that waits rises by one priority for each such time, in seconds or as a text such as
        "30s", up to the highest priority that waits; None means never.
    watchdog: what becomes of an engine whose step takes longer than step_limit: "off", "report" writes what runs into
        a file, "restart" also puts another engine in its place once the step ends, and in the place of one that died
        (requests that have no token yet go on there, the others end with EngineRestartedError), "exit" also ends the
        process with code 70 while the step still hangs, for a supervisor to start it anew (docs/operating.md).
    step_limit: the longest time that a step may take, in seconds or as a text such as "2min".
    watchdog_dir: the folder of the watchdog's files; None means the system's folder for temporary files.
    max_prompt_logprob_rows: the most prompt tokens that one step scores for prompt_logprobs; each takes the memory of a
        row of logits from its first use on.
    threads: the number of worker threads; None means one per physical core that this process may use. On a GPU the
        threads only draw the tokens.
    load: "map" maps the weights (shared with other processes, read as needed), "copy" copies them into private memory.
        Only target cpu has the choice.
    numa: what to do on a machine with several NUMA nodes, with load "copy". "split" keeps each thread to a processor,
        and the part of the weights that it reads on its node; "interleave" keeps threads, and spreads weights over the
        nodes; "off" leaves both to the system; "auto" splits if every physical core has a thread. Ranks of
        this machine have processors of their own with "split", and with "auto" if every core has a thread. Only target
        cpu.
    rank_timeout: of an engine with several ranks, the seconds that a rank waits for another in a step. Then all of them
        end what they do with RankError, and start again (docs/ranks.md).
    devices: of an engine of a GPU's target, the numbers of the GPUs that it runs on, such as "1", or "0,1" for two
        ranks. None means 0, and one more for each further rank of this machine.
    gpu_memory: of an engine of a GPU's target, the share of the GPU's memory, beside weights and activations, that the
        KV cache may take where kv_cache_memory says no size. None means 0.9.
    enable_prefix_caching: True keeps the keys and values of finished prompts for later prompts with the same beginning.
        None means True if the engine's target can do it; all targets but onnx can.
    prefix_cache_memory: memory beside the KV cache, in bytes or as a text such as "4GiB", for blocks of prompts that
        the KV cache forgets; a prompt that begins with them gets them back. None means none.
    prefix_cache_disk: a directory for such blocks that outlives the engine: what it remembered is found again after a
        restart. It is for one running copy of an engine; engines that differ may share it. None means none.
        docs/prefix-cache.md has all of it. Only target cpu, and models without recurrent layers.
    prefix_cache_disk_size: the most bytes in prefix_cache_disk; None means 20 GiB.
    prefix_cache_ttl: the seconds after its last use in which a block is kept there; None means no limit.
    pinned_prefix_memory: the part of kv_cache_memory that pinned prefixes may hold (`pin_prefix`), in bytes or as a
        text. A request must fit what is left. None means that no prefix can be pinned.
    cache_events: the events of the prefix cache that are kept for `cache_events`: a reader may be behind by so many.
        None means that nobody can read any.
    state_snapshots: the most states of recurrent layers that prefix caching keeps, each the memory of one sequence's
        states; a prompt is shared up to such a state. None means 4 for each of max_batch_size, in at most a quarter of
        kv_cache_memory; 0 shares no prompt of a model with such layers.
    speculative: who proposes tokens that may come next; one step then computes them together, and those that the
        model would have drawn are kept. Tokens and logprobs are those of the run without it, bit for bit. "ngram", or a
        dict such as {"method": "ngram", "tokens": "auto", "min_match": 2}; docs/speculation.md has all of it. Only
        the targets cpu and cuda, and models without recurrent layers.
    adapters: LoRA adapters that are loaded at the start, as {name: folder that PEFT saved}. A request names one in
        SamplingParams.adapter; docs/lora.md. Only target cpu.
    max_loras: the most adapters that may be loaded at once, by their names; None means as many as `adapters` has. With
        0 the engine takes none, and keeps no memory for them.
    max_lora_rank: the greatest rank of an adapter, at most 128. Memory is kept for it.
    trace: a file that gets, when the engine stops, what it did when: steps, instructions, threads and requests, in
        Chrome's trace format (docs/operating.md). It has room for about two million spans.
    guided_vocabulary: the time at which the vocabulary is read for guided decoding, which may take seconds: "lazy" at
        the first guided request, "eager" in a thread that starts right after the engine. No other request waits.
    jump_forward: whether tokens that guided decoding forces are computed in the step of the token before them, so that
        they cost no step of their own. Tokens and logprobs stay the same bits. None means True where the engine can:
        target cpu, and models without recurrent layers.
    max_queue_size: the requests that may wait; one more raises QueueFullError (`generate` waits instead).
    dtype: for a build from a model directory: "auto", "float32" or "bfloat16" (short names: "bf16", "fp32").
    quantize: for a build from a model directory: the formats of the weights, as `build` takes them ("int4", "int8:g64",
        "w8a8", "int4,lm_head=int8", "mixed:4.5"); None keeps codes of a quantized checkpoint, and other weights in
        dtype.
    quantize_config: for a build from a model directory: a file that gives weights formats by patterns of their names.
    sparsity: for a build from a model directory: "none", or "2:4", which keeps two of each 4 weights of the layers.
    calibrate, calibration_text: for a build from a model directory: what a text chooses of quantized matrices, such as
        "gptq", and a file of text for it; None takes one of this package. As in `build`.
    kv_cache_dtype: for a build from a model directory: "auto", which is the type of the activations, "int8" or "int4".
    attention_window, sink_tokens: for a build from a model directory: layers that attend to all positions see the last
        attention_window positions and the first sink_tokens (None means 4); None leaves attention as it is.
    kv_budget, recent_tokens: for a build from a model directory: the KV cache keeps kv_budget tokens of a sequence at
        every 128th, of these the last recent_tokens (None means a quarter), the first sink_tokens, and those that
        attention looked at most; None keeps all.
    sparse_prefill: for a build from a model directory: each 32 positions of a prompt see at most so many positions,
        which they choose (docs/long-contexts.md); None lets them see all.
    max_seq_len: for a build from a model directory: the most tokens of prompt and answer together; None means as many
        as the model has.
    revision: with a hub name: the branch, tag or commit of the hub; None means the main branch.
    chat_template: the template of `chat` and the server, unless a call names another one: Jinja text, or the name of
        one of the model's templates. None means the model's own template, chosen as transformers chooses it.
    tool_parser: the format in which the model writes calls of tools, one of TOOL_PARSERS of options/engine.py. "auto"
        chooses it from the chat template; "none" leaves calls in the text.
    reasoning_parser: the form in which the model thinks before it answers, one of REASONING_PARSERS, likewise.
    generation_config: the source of the sampling defaults of a call without parameters: "model" is the model's
        generation_config.json, "neutral" is SamplingParams alone.
    Raises EngineError, InvalidOptionError, OutOfMemoryError, MissingDependencyError.
    """

    _elsewhere: ClassVar = {
        option.name: "it is an option of build() and build-engine; build the engine first, and give its path"
        for option in options_in(BuildFields)
        if Door.LLM not in option.at
    }

    def __init__(
        self,
        model: str | Path,
        *,
        kv_cache_memory: str | int | None = None,
        max_batch_size: int | None = None,
        max_num_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
        itl_goal: str | float | None = None,
        priority_ageing: str | float | None = None,
        watchdog: str = "off",
        step_limit: str | float = 300.0,
        watchdog_dir: str | None = None,
        max_prompt_logprob_rows: int = 64,
        threads: int | None = None,
        load: str = "map",
        numa: str = "auto",
        rank_timeout: float = 300.0,
        devices: str | None = None,
        gpu_memory: float | None = None,
        enable_prefix_caching: bool | None = None,
        prefix_cache_memory: str | int | None = None,
        prefix_cache_disk: str | Path | None = None,
        prefix_cache_disk_size: str | int | None = None,
        prefix_cache_ttl: float | None = None,
        pinned_prefix_memory: str | int | None = None,
        cache_events: int | None = None,
        state_snapshots: int | None = None,
        speculative: str | Mapping[str, Any] | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        max_loras: int | None = None,
        max_lora_rank: int = 16,
        trace: str | Path | None = None,
        guided_vocabulary: str = "lazy",
        jump_forward: bool | None = None,
        max_queue_size: int = 1024,
        dtype: str = "auto",
        quantize: str | None = None,
        quantize_config: str | Path | None = None,
        sparsity: str = "none",
        kv_cache_dtype: str = "auto",
        attention_window: int | None = None,
        sink_tokens: int | None = None,
        kv_budget: int | None = None,
        recent_tokens: int | None = None,
        sparse_prefill: int | None = None,
        calibrate: str = "none",
        calibration_text: str | Path | None = None,
        max_seq_len: int | None = None,
        revision: str | None = None,
        chat_template: str | None = None,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        generation_config: str = "model",
    ):
        if chat_template is not None:
            from tensorwright.runtime.text.chat_template import (
                check_argument,  # Jinja is imported only where it is needed
            )

            check_argument(chat_template)
        check_generation_config(generation_config)
        asked = _bytes(kv_cache_memory, "kv_cache_memory")
        given = check_adapters(adapters, max_loras)
        options = RuntimeOptions(
            kv_cache_bytes=asked,
            max_batch_size=max_batch_size,
            max_num_tokens=max_num_tokens,
            max_prefill_chunk=max_prefill_chunk,
            itl_goal=None if itl_goal is None else parse_duration(itl_goal, "itl_goal"),
            priority_ageing=None if priority_ageing is None else parse_duration(priority_ageing, "priority_ageing"),
            watchdog=watchdog,
            step_limit=parse_duration(step_limit, "step_limit"),
            watchdog_dir=watchdog_dir,
            max_prompt_logprob_rows=max_prompt_logprob_rows,
            threads=threads,
            load=load,
            numa=numa,
            rank_timeout=rank_timeout,
            devices=devices,
            gpu_memory=gpu_memory,
            enable_prefix_caching=enable_prefix_caching,
            max_queue_size=max_queue_size,
            prefix_cache_memory=_bytes(prefix_cache_memory, "prefix_cache_memory"),
            prefix_cache_disk=os.fspath(prefix_cache_disk)
            if isinstance(prefix_cache_disk, Path)
            else prefix_cache_disk,
            prefix_cache_disk_size=_bytes(prefix_cache_disk_size, "prefix_cache_disk_size"),
            prefix_cache_ttl=prefix_cache_ttl,
            pinned_prefix_memory=_bytes(pinned_prefix_memory, "pinned_prefix_memory"),
            cache_events=cache_events,
            state_snapshots=state_snapshots,
            speculation=read_speculation(speculative, "LLM: "),
            max_loras=len(given) if max_loras is None else max_loras,
            max_lora_rank=max_lora_rank,
            jump_forward=jump_forward,
            trace=os.fspath(trace) if isinstance(trace, Path) else trace,
        )
        find(EngineFields, "guided_vocabulary").check(guided_vocabulary)
        find(EngineFields, "tool_parser").check(tool_parser)
        find(EngineFields, "reasoning_parser").check(reasoning_parser)
        choices = BuildChoices(
            dtype=dtype,
            quantize=quantize,
            quantize_config=os.fspath(quantize_config) if isinstance(quantize_config, Path) else quantize_config,
            sparsity=sparsity,
            kv_cache_dtype=kv_cache_dtype,
            attention_window=attention_window,
            sink_tokens=sink_tokens,
            kv_budget=kv_budget,
            recent_tokens=recent_tokens,
            sparse_prefill=sparse_prefill,
            calibrate=calibrate,
            calibration_text=os.fspath(calibration_text) if isinstance(calibration_text, Path) else calibration_text,
            max_seq_len=max_seq_len,
        )
        path = find_model(model, revision)
        if is_model(path):  # a build may take minutes, so wrong limits must be refused before it
            options = options.with_limits(DEFAULT_LIMITS)
        self.engine, self._lease = open_model(path, choices)
        if chat_template is not None:
            from tensorwright.runtime.api.chat import check_choice

            check_choice(self.engine, chat_template)
        self.chat_template = chat_template
        self.tool_parser = tool_parser
        self.reasoning_parser = reasoning_parser
        self.sampling_defaults = sampling_defaults(self.engine, generation_config)
        file = None if options.trace is None else TraceFile(options.trace)
        try:
            engine, self.options = native.start_engine(self.engine, options)
            written = None if file is None else partial(file.write, engine, str(self.engine.path))
            replaceable = native.can_start_again(self.engine, self.options)
            again = partial(native.start_again, self.engine, self.options) if replaceable else None
            loras = self.options.max_loras
            self._adapters = AdapterTable(self.engine, engine if loras else None, loras, max_lora_rank)
            try:
                for name, folder in given.items():
                    self._adapters.load(name, folder, int(time.time()))
            except BaseException:
                engine.shutdown(False)
                raise
            self._client = EngineClient(
                engine,
                written,
                again,
                keep_waiting=self.engine.config.ranks == 1,
                watchdog=watchdog_options(self.options.watchdog, self.options.step_limit, self.options.watchdog_dir),
            )
            del engine  # the client alone refers to it, so that its memory is free once another takes its place
        except BaseException:
            if file is not None:
                file.discard()
            raise
        self._finalizer = weakref.finalize(self, self._client.close_dropped)
        self._finalizer.atexit = False  # at the interpreter's exit the client closes itself
        stats = self._client.stats()
        room = stats["pinned_room"]
        # A sequence holds as many blocks of a group with a budget as of one with this window.
        more = self.engine.chunk_stop - stats["block_size"]
        groups = tuple(
            (group["kv_budget"] + more if group["kv_budget"] else group["window"], group["total_blocks"] - room)
            for group in stats["groups"]
        )
        self.capacity = Capacity(groups, stats["block_size"], self.options.max_batch_size)
        self.pins = PinTable(
            self._client.pin, self._client.unpin, stats["block_size"], room, native.pins_of(self.engine, self.options)
        )
        if room:
            self._client.on_replaced = _weak(self._pin_again)
            self._pin_again()
        if guided_vocabulary == "eager":
            vocabulary_reader(self.engine).start()

    @overload
    def generate(  # type: ignore[overload-overlap]  # a string is a sequence of strings too
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
        """Generates the outputs of one prompt or many, and waits for all.

        One prompt (a string or a dict) gives one RequestOutput, a list gives a list in the same order. Every prompt is
        checked before any work starts; if a request fails later, the others are aborted and its error is raised.
        sampling_params: one SamplingParams for all prompts, or a list with one per prompt; None means
        default_sampling_params. progress: True shows a bar on standard error.
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
        except BaseException:  # after an interrupt too, no request may go on without a reader
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
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        reasoning_effort: str | None = None,
        thinking_token_budget: int | None = None,
        progress: bool = False,
    ) -> Any:
        """Answers a conversation, or a list of conversations, as `generate` answers prompts. Each completion has its
        `message` besides its text: content, reasoning and calls of tools.

        messages: dicts with "role" and "content". The chat template gets them in the form that it takes: the role
        "developer" becomes "system" if the template does not know it, and the arguments of earlier calls are parsed. A
        name that the template does not read is refused.
        chat_template: Jinja text that replaces the model's template, or the name of one of the model's templates.
        add_generation_prompt: True ends the prompt with the start of the assistant's answer.
        template_variables: further variables for the template, such as enable_thinking; tools and documents that the
        template never reads are refused.
        tools, tool_choice, parallel_tool_calls: as in OpenAI's chat completions (docs/tools.md).
        reasoning_effort: "none", "minimal", "low", "medium", "high", "xhigh" or "max"; None leaves it to the model.
        thinking_token_budget: the most tokens of thinking, after which its end is forced; None means any number.
        """
        from tensorwright.runtime.api.chat import is_conversation  # Jinja takes as long as all other imports together
        from tensorwright.runtime.api.chat_plan import ChatSettings, ChatWish, plan_chat
        from tensorwright.runtime.chat_formats.tools import read_tools

        self._client.check_process()
        single = is_conversation(messages)
        talks = [messages] if single else list(messages)
        template = self.chat_template if chat_template is None else chat_template
        settings = ChatSettings(template, self.tool_parser, self.reasoning_parser)
        wish = ChatWish(
            read_tools(tools, tool_choice, parallel_tool_calls),
            add_generation_prompt,
            template_variables or {},
            reasoning_effort,
            thinking_token_budget,
        )
        params = self._params_of_each(talks, sampling_params)
        plans = [plan_chat(self.engine, settings, talk, wish, each) for talk, each in zip(talks, params, strict=True)]
        try:
            outputs = self.generate([plan.prompt for plan in plans], [plan.params for plan in plans], progress=progress)
        except InvalidRequestError as error:
            raise plans[0].explain(error) from error
        for plan, output in zip(plans, outputs, strict=True):
            for completion in output.outputs:
                completion.message = plan.message(completion.text)
        return outputs[0] if single else outputs

    def generate_async(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestHandle:
        """Starts one request and returns its RequestHandle at once. Raises typed errors before any work starts."""
        self._client.check_process()
        params = self.default_sampling_params if sampling_params is None else sampling_params
        return self._submit(self._check(prompt, params))

    def embed(
        self,
        prompts: Any,
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        params: PoolingParams | None = None,
        progress: bool = False,
    ) -> Any:
        """Returns the embedding of one prompt, an EmbeddingOutput, or of each of a list, in the same order.

        The engine must be of task "embed" (docs/embeddings.md). prompts: as `generate` takes them. prompt_name: the
        text of the model that stands before each of them; None means the model's default, if it has one, and "" means
        none. dimensions: how many of the leading numbers are kept; None means all. normalize: whether an embedding is
        divided by its length after that; None means as the engine was built. params: whose turn it takes, and the like.
        progress: True shows a bar on standard error. Raises TaskError, InvalidRequestError, PromptTooLongError.
        """
        from tensorwright.runtime.api.pooled import embed

        return embed(self, prompts, EmbeddingWish(prompt_name, dimensions, normalize), params, progress)

    def score(self, text_1: Any, text_2: Any, *, instruction: str | None = None, progress: bool = False) -> Any:
        """Returns how well texts fit each other, a list of ScoreOutput.

        text_1: one text, which is compared with each of `text_2`, or as many as these. An engine of task "embed" gives
        the cosine of the two embeddings, one of task "rerank" the probability that the document `text_2` answers the
        query `text_1`. instruction: for task "rerank"; None means the engine's. Raises TaskError, InvalidRequestError,
        PromptTooLongError.
        """
        from tensorwright.runtime.api.pooled import score

        return score(self, text_1, text_2, instruction, progress)

    def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, instruction: str | None = None
    ) -> list[RankedDocument]:
        """Returns the documents that fit a query best, the best one first, scored as `score` does.

        top_n: how many of them; None means all. Documents of the same score keep their order.
        """
        from tensorwright.runtime.api.pooled import rerank

        return rerank(self, query, documents, top_n, instruction)

    def abort(self, request_id: int) -> bool:
        """Ends a request soon, from any thread. The request finishes with finish_reason "abort" and its output so far.

        Returns False if the request has ended already, or never existed.
        """
        return self._client.abort_for_caller(request_id)

    def load_adapter(self, name: str, path: str | Path) -> LoadedAdapter:
        """Loads a LoRA adapter, from any thread, while requests run. path: a folder that PEFT saved.

        An adapter that has the name already is replaced for the requests that come; those that have it go on with it.
        The adapter is checked wholly before anything changes. Raises AdapterError, InvalidOptionError,
        OutOfMemoryError, EngineStoppedError.
        """
        self._client.check_open()
        return self._adapters.load(name, path, int(time.time()))

    def unload_adapter(self, name: str) -> None:
        """Forgets an adapter. New requests cannot name it; those that have it go on, and its memory is free when the
        last of them has ended. Raises UnknownModelError."""
        self._client.check_process()
        self._adapters.unload(name)

    def pin_prefix(
        self,
        name: str,
        prompt: Prompt | None = None,
        *,
        messages: Any = None,
        tools: Sequence[dict[str, Any]] | None = None,
        cache_salt: str | None = None,
    ) -> PinnedPrefix:
        """Computes the beginning of prompts and keeps its blocks in the KV cache, until `unpin_prefix`. A prefix that
        has the name already is replaced.

        prompt: the text or tokens, as `generate` takes them. messages, tools: instead, the beginning of conversations.
        cache_salt: that of the requests which are to find the prefix. Whole blocks are pinned, at least one. With
        prefix_cache_disk the prefix is pinned again after a restart. Raises InvalidRequestError, also where
        pinned_prefix_memory has no room, and TemporarilyUnavailableError if requests take the blocks each time.
        """
        if (prompt is None) == (messages is None):
            raise InvalidRequestError("pin_prefix: exactly one of prompt and messages must be given")
        self.pins.check(name)
        params = computing_prefix(SamplingParams(cache_salt=cache_salt))
        for _ in range(TRIES):
            if prompt is not None:
                output = self.generate(prompt, params)
            else:
                output = self.chat(messages, params, tools=tools, add_generation_prompt=False)
            pin = self.pins.hold(name, output.prompt_token_ids, cache_salt or "")
            if pin is not None:
                return pin
        raise TemporarilyUnavailableError(f"{name}: requests took the blocks of the prefix each time; try again later")

    def unpin_prefix(self, name: str) -> None:
        """Lets the blocks of a pinned prefix be evicted again. Raises UnknownPrefixError."""
        self._client.check_process()
        self.pins.unpin(name)

    @property
    def pinned_prefixes(self) -> list[PinnedPrefix]:
        """The prefixes that `pin_prefix` pinned, in the order of their pinning."""
        return self.pins.of()

    def cache_events(self, after: str | None = None, *, limit: int = MAX_READ, wait: float = 0.0) -> CacheEvents:
        """Returns which blocks the prefix cache stored and removed since an earlier call (docs/prefix-cache.md).

        after: `next` of that call's answer. None begins with the whole content, in parts: `more` says that the next one
        can be asked for at once. limit: the most events, 1 to 1,000; a block of a model with several cache groups may
        come over it. wait: the seconds to wait for the first event. Raises InvalidRequestError, also for an engine that
        was started without the option cache_events, TemporarilyUnavailableError while another engine takes the place
        of one that died or where a step leaves no time for a part of the content, and QueueFullError if too many wait
        for such a part.
        """
        names = {adapter.key: adapter.name for adapter in self.adapters.values()}
        end = time.monotonic() + wait
        while True:
            rest = max(0.0, end - time.monotonic())
            found = read_cache_events(self._client.cache_feed(), after, limit, min(rest, POLL), names)
            if found.events or found.more or rest == 0:
                return found
            after = found.next

    def _pin_again(self) -> None:
        """Pins what an engine before this one had pinned, in a thread: each prefix must be computed first."""
        if self.pins.lose_all():
            thread = threading.Thread(target=self.pins.restore, args=(self._compute_prefix,), daemon=True)
            thread.name = "tensorwright-pins"
            thread.start()

    def _compute_prefix(self, pin: PinnedPrefix) -> None:
        params = computing_prefix(SamplingParams(cache_salt=pin.salt or None))
        self.generate_async({"prompt_token_ids": list(pin.token_ids)}, params).result()

    @property
    def adapters(self) -> dict[str, LoadedAdapter]:
        """The adapters that requests can name, in the order of their loading."""
        return self._adapters.loaded

    def get_stats(self) -> dict[str, Any]:
        """Returns counters of the running engine: blocks, queue lengths, steps, tokens, preemptions, prefix hits."""
        return self._client.stats()

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The parameters of a call without sampling_params: the model's defaults, and SamplingParams' for the rest.

        The sampling_params of a call replace all of them. To change only one, use dataclasses.replace.
        """
        return SamplingParams(**self.sampling_defaults)

    @property
    def tokenizer(self) -> LLMTokenizer:
        """The tokenizer, with encode, decode and count. Raises InvalidRequestError for an engine without a
        tokenizer."""
        return LLMTokenizer(self.engine)

    @property
    def max_seq_len(self) -> int:
        """The most tokens of a request, prompt and output together, for which the engine was built."""
        return self.engine.max_seq_len

    @property
    def trouble(self) -> str:
        """Why the engine cannot work at the moment, although it was not shut down: a step is over step_limit, or
        another engine takes the place of one that died. "" while all is well."""
        return self._client.trouble

    @property
    def running(self) -> bool:
        """Whether the engine takes requests: it was not shut down, and its loop runs."""
        return self._client.running

    @property
    def stalled_seconds(self) -> float:
        """The seconds for which the engine has had requests, but has ended no step and made no output; 0 without
        requests.

        If the number grows beyond the longest step, the engine is stuck. Reading it costs nothing.
        """
        return self._client.stalled_seconds

    def add_observer(self, observer: Observer) -> None:
        """Calls observer(output, error) for every request that ends from now on.

        All requests wait for the thread that calls it, so the observer must be quick. error: the error that the request
        raises, or None; with an error, output is the output so far.
        """
        self._client.add_observer(observer)

    def profile(self, enable: bool) -> None:
        """Starts to measure every instruction of the following steps, from zero, or stops. enable: False stops.

        The measurement takes less than a microsecond per instruction.
        """
        self._client.profile(enable)

    def get_profile(self) -> dict[str, Any]:
        """Returns the measurements by phase ("prefill", "decode", "mixed").

        Each phase has "steps" (steps, tokens, sequences, rows, ns) and "instructions", a list with the name, op, calls,
        ns, bytes and ops (operations) of each instruction. A layer of experts has "expert_rows" too: how many rows took
        each expert.
        """
        return self._client.read_profile()

    def prefix_transfers(self) -> Any:
        """Returns what gives prefixes of this engine's KV cache to other engines, and takes theirs.

        `tensorwright.runtime.transfer` is its user; docs/prefill-decode.md.
        """
        return self._client.prefix_transfers()

    def shutdown(self, drain: bool = False, timeout: float = 30.0) -> None:
        """Stops the engine; a second call does nothing.

        drain: True lets requests finish first, for at most `timeout` seconds. The remaining requests raise
        RequestAbortedError in the callers that wait for them.
        """
        try:
            self._client.close(drain, timeout)
        finally:
            self._finalizer.detach()  # it would begin a thread that finds the client closed
            vocabulary_reader(self.engine).close()
            if self._lease is not None:
                self._lease.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def _check_all(self, prompts: list[Prompt], params: Any) -> list[CheckedRequest]:
        pairs = zip(prompts, self._params_of_each(prompts, params), strict=True)
        versions: dict[str | None, LoadedAdapter | None] = {}
        return [self._check(prompt, param, versions) for prompt, param in pairs]

    def _params_of_each(self, prompts: Sequence[Any], params: Any) -> list[SamplingParams]:
        """Returns the parameters of each prompt. params: what a caller gives as sampling_params."""
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_sampling_params] * len(prompts)
        if not isinstance(params, (list, tuple)) or len(params) != len(prompts):
            count = len(params) if isinstance(params, (list, tuple)) else repr(params)
            raise InvalidRequestError(
                f"sampling_params must be one SamplingParams or a list of one per prompt ({len(prompts)}), got {count}"
            )
        return list(params)

    def _check(
        self, prompt: Prompt, params: SamplingParams, versions: dict[str | None, LoadedAdapter | None] | None = None
    ) -> CheckedRequest:
        """versions: the adapters that earlier prompts of the call have by name; it gets those of this one."""
        request = check_request(prompt, params, self.engine, self.capacity)
        versions = {} if versions is None else versions
        if params.adapter not in versions:
            versions[params.adapter] = self._adapters.find(params.adapter)
        adapter = versions[params.adapter]
        return request if adapter is None else replace(request, adapter=adapter)

    def _submit(self, request: CheckedRequest, wait_for_room: bool = False) -> RequestHandle:
        sampling = make_sampling(request, self.engine.eos_token_ids, self.engine.config.pooling)
        tokenizer, params, grammar = self.engine.tokenizer, request.params, request.grammar
        first_mask = None if grammar is None else grammar.first_mask(params.ignore_eos)

        def make_state(request_id: int) -> RequestState:
            return RequestState(request_id, request.text, request.ids, params, tokenizer, grammar)

        return self._client.submit(make_state, sampling, wait_for_room, first_mask)
