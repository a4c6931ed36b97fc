"""Defines the class that Ray Serve runs as a replica: one engine, which answers requests with the engine's events.

A replica does not write text for clients. The server that sends the request makes text of the tokens, so it can go on
with another replica when one is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from tensorwright.errors import (
    EngineStoppedError,
    ReplicaLostError,
    RequestAbortedError,
    TensorwrightError,
)
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.options import EngineOptions
from tensorwright.runtime.guided.compile_queue import on_behalf_of
from tensorwright.runtime.requests.prompts import Capacity, PromptDict
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_news import RequestNews
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.ray.wire import RemoteRequest, ReplicaNews, events_of, failed

MAX_SILENCE = 60.0


@dataclass(frozen=True)
class ReplicaFacts:
    """What does not change of a replica. engine: a text that is equal for replicas that give equal bits: those of equal
    engines on processors of equal features."""

    engine: str
    digest: str
    form: str
    options: EngineOptions
    capacity: Capacity


class SendersQueues:
    """Knows how many requests wait at the servers that send to this replica, as they said with their last requests. A
    server that has sent nothing for long counts no more."""

    def __init__(self) -> None:
        self._queued: dict[str, tuple[int, float]] = {}

    def note(self, sender: str, queued: int) -> None:
        self._queued[sender] = queued, time.monotonic()

    def total(self) -> int:
        oldest = time.monotonic() - MAX_SILENCE
        self._queued = {sender: (queued, at) for sender, (queued, at) in self._queued.items() if at >= oldest}
        return sum(queued for queued, _ in self._queued.values())


class EngineReplica:
    """One engine behind Ray Serve.

    path: an engine, which must be there on every machine that replicas may run on. options: keywords of LLM.
    max_stall_seconds: when the engine has requests and has ended no step for longer, the replica is not healthy, and
    Ray Serve replaces it. form: a text for how the application was made (deployment.form_of).
    """

    def __init__(self, path: str, options: dict[str, Any], max_stall_seconds: float, form: str):
        self._llm = LLM(path, **options)
        self._max_stall_seconds = max_stall_seconds
        self._form = form
        self._engine = engine_and_machine(self._llm.engine.digest)
        self._queues = SendersQueues()

    async def generate(self, request: RemoteRequest) -> AsyncIterator[ReplicaNews]:
        """Yields the news of a request until it ends. An error of the request is its last event. Closing the generator
        aborts the request.

        Raises EngineStoppedError or RequestAbortedError if the engine stops.
        """
        if request.engine not in (None, self._engine):
            lost = ReplicaLostError("its tokens come from another engine, or from another kind of processor")
            yield ReplicaNews(self._engine, [failed(lost)])
            return
        self._queues.note(request.sender, request.queued)
        params = request.params
        try:
            handle = await self._started(request)
            eos = () if params.ignore_eos else self._llm.engine.eos_token_ids
            async for output in RequestNews(handle):
                if events := events_of(output, params, eos):
                    yield ReplicaNews(self._engine, events)
        except (EngineStoppedError, RequestAbortedError):
            raise  # The replica is lost, and not only this request.
        except TensorwrightError as error:
            yield ReplicaNews(self._engine, [failed(error)])

    async def _started(self, request: RemoteRequest) -> RequestHandle:
        """Starts a request in a thread, for a grammar may take long. A request whose sender leaves meanwhile is
        aborted."""
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, request))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_abort_started)
            raise

    def _start(self, request: RemoteRequest) -> RequestHandle:
        prompt = PromptDict(prompt_token_ids=request.tokens)
        with on_behalf_of(request.client):
            return self._llm.generate_async(prompt, without_text(request.params))

    async def facts(self) -> ReplicaFacts:
        return ReplicaFacts(self._engine, self._llm.engine.digest, self._form, self._llm.options, self._llm.capacity)

    async def check_health(self) -> None:
        """Ray Serve replaces a replica for which this raises."""
        if not self._llm.running:
            raise EngineStoppedError("the engine stopped; the replica's log says why")
        if self._llm.stalled_seconds > self._max_stall_seconds:
            raise EngineStoppedError(f"no step of the engine has ended for {self._llm.stalled_seconds:.0f} seconds")

    def record_replica_metadata(self) -> dict[str, Any]:
        """Returns what routers read of a replica once (router.py)."""
        return {"engine": self._engine}

    async def record_routing_stats(self) -> dict[str, Any]:
        """Returns what routers, and through them servers, read of a replica again and again: its load, and
        LLM.get_stats()."""
        stats = await asyncio.to_thread(self._llm.get_stats)
        return {**self._load(stats), "stats": stats}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns what the number of replicas depends on (scaling.py)."""
        return self._load(await asyncio.to_thread(self._llm.get_stats)) | {"queued": float(self._queues.total())}

    def _load(self, stats: dict[str, Any]) -> dict[str, float]:
        groups = stats["groups"]  # none if all layers are recurrent
        usage = max((group["used_blocks"] / max(1, group["total_blocks"]) for group in groups), default=0.0)
        requests = stats["running"] + stats["waiting"]
        return {"requests": float(requests), "places": float(self._llm.options.max_batch_size), "kv_usage": usage}


def _abort_started(starting: asyncio.Future[RequestHandle]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().abort()


def without_text(params: SamplingParams) -> SamplingParams:
    """Returns parameters with which the replica decodes text only if it must search it for stop strings."""
    return params if params.stop else replace(params, detokenize=False)


def engine_and_machine(digest: str) -> str:
    """Returns a text for an engine on this machine; where it is equal, the bits are. digest: EngineDir.digest."""
    module = native.load_module()
    present = ",".join([module.isa(), *sorted(name for name, has in module.cpu_features().items() if has)])
    return f"{digest}-{xxhash.xxh3_64_hexdigest(present.encode())}"
