"""Defines RemoteLLM, which the server uses like an LLM, and whose requests are computed by replicas on Ray Serve."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorwright.engine_format.file_names import TOKENIZER
from tensorwright.errors import InvalidOptionError, InvalidRequestError, UnknownModelError
from tensorwright.options.declare import find
from tensorwright.options.engine import EngineFields
from tensorwright.runtime.engine.adapters import LoadedAdapter
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.guided.compile_queue import current_client
from tensorwright.runtime.guided.reader import vocabulary_reader
from tensorwright.runtime.requests.cache_events import MAX_READ, CacheEvents
from tensorwright.runtime.requests.engine_client import Observer
from tensorwright.runtime.requests.generation_defaults import sampling_defaults
from tensorwright.runtime.requests.pinned_prefixes import PinTable
from tensorwright.runtime.requests.prompts import CheckedRequest, Prompt, check_request
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.routing.prefix_keys import prefix_keys
from tensorwright.runtime.serving.ray.remote_client import RemoteClient
from tensorwright.runtime.serving.ray.replica import ReplicaFacts
from tensorwright.runtime.serving.ray.wire import RemoteRequest


class RemoteLLM:
    """An engine whose replicas run elsewhere. It has what the server needs of an LLM (ServedModel), and is thread-safe.

    engine: the engine's folder as this machine has it; its weights are not loaded here. facts: of one replica.
    client: sends the requests. It ends with this object.
    """

    def __init__(
        self,
        engine: EngineDir,
        facts: ReplicaFacts,
        client: RemoteClient,
        chat_template: str | None = None,
        generation_config: str = "model",
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
    ):
        require_same_engine(engine, facts)
        find(EngineFields, "tool_parser").check(tool_parser)
        find(EngineFields, "reasoning_parser").check(reasoning_parser)
        self.engine = engine
        self.options = facts.options
        self.chat_template = chat_template
        self.tool_parser = tool_parser
        self.reasoning_parser = reasoning_parser
        self.sampling_defaults = sampling_defaults(engine, generation_config)
        self._generation_config = generation_config
        self._capacity = facts.capacity
        self._client = client
        self.pins = PinTable(lambda *_: 0, lambda _: None, engine.block_size, 0)  # replicas pin nothing

    def generate_async(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestHandle:
        """Starts one request and returns its RequestHandle at once. Raises typed errors before any work starts."""
        engine = self.engine
        params = SamplingParams(**self.sampling_defaults) if sampling_params is None else sampling_params
        request = check_request(prompt, params, engine, self._capacity)
        if params.adapter is not None:
            raise UnknownModelError(f"replicas have no adapters, and {params.adapter!r} is asked for; leave --ray out")
        remote = RemoteRequest(
            request.ids,
            exact(request),
            prefix_keys(request.ids, engine.block_size, params.cache_salt or ""),
            current_client(),
        )

        def make_state(request_id: int) -> RequestState:
            return RequestState(request_id, request.text, request.ids, params, engine.tokenizer)

        return self._client.submit(make_state, remote)

    @property
    def adapters(self) -> dict[str, LoadedAdapter]:
        """Replicas have no adapters."""
        return {}

    def load_adapter(self, name: str, path: str | Path) -> LoadedAdapter:
        raise InvalidOptionError("replicas have no adapters; leave --ray out")

    def unload_adapter(self, name: str) -> None:
        raise UnknownModelError(f"replicas have no adapters, and {name!r} is asked for")

    def cache_events(self, after: str | None = None, *, limit: int = MAX_READ) -> CacheEvents:
        raise InvalidRequestError("replicas tell no events of their prefix caches; leave --ray out")

    @property
    def running(self) -> bool:
        return self._client.running

    @property
    def trouble(self) -> str:
        """Replicas watch their engines themselves, and one that is lost is replaced on its own: always ""."""
        return ""

    @property
    def stalled_seconds(self) -> float:
        return self._client.stalled_seconds

    def get_stats(self) -> dict[str, Any]:
        return self._client.stats()

    def add_observer(self, observer: Observer) -> None:
        self._client.add_observer(observer)

    def shutdown(self) -> None:
        """Ends all requests. The replicas are not ended by this (cluster.py). A second call does nothing."""
        self._client.close()
        vocabulary_reader(self.engine).close()

    def take_engine(self, engine: EngineDir) -> None:
        """Makes `engine` the engine of requests from now on. Requests that have begun keep theirs."""
        self.sampling_defaults = sampling_defaults(engine, self._generation_config)
        self.engine = engine


def exact(request: CheckedRequest) -> SamplingParams:
    """Returns the parameters of a checked request with nothing left open, so that each replica does the same with
    them."""
    params = request.params
    return replace(
        params,
        max_tokens=request.max_tokens,
        truncate_prompt_tokens=None,
        bad_words=tuple(tuple(word) for word in request.bad_words),
        seed=secrets.randbits(64) if params.seed is None else params.seed,
    )


def require_same_engine(engine: EngineDir, facts: ReplicaFacts) -> None:
    """Raises InvalidOptionError if the replicas run another engine than `engine`."""
    if engine.digest != facts.digest:
        raise InvalidOptionError(
            f"{engine.path}: the replicas read another engine at this path; each machine must have the same one there"
        )


def require_replaceable(old: EngineDir, new: EngineDir) -> None:
    """Raises InvalidOptionError if requests cannot pass from replicas of one engine to those of another: this server
    makes tokens of texts and texts of tokens for both."""
    for name in ("vocab_size", "max_seq_len", "block_size", "eos_token_ids"):
        if getattr(old, name) != getattr(new, name):
            raise InvalidOptionError(
                f"{new.path}: {name} must be that of the engine that is served, {getattr(old, name)}, got "
                f"{getattr(new, name)}: start another server for it"
            )
    if old.files.get(TOKENIZER) != new.files.get(TOKENIZER):
        raise InvalidOptionError(
            f"{new.path}: {TOKENIZER} must be that of the engine that is served: start another server for it"
        )
