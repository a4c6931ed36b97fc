"""Defines what passes between the server and a replica: requests one way, the engine's events the other way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tensorwright.runtime.base.engine_event import EngineEvent
from tensorwright.runtime.requests.outputs import CompletionOutput, Logprob, RequestOutput
from tensorwright.runtime.requests.sampling_params import SamplingParams

Entries = list[tuple[int, float, int]]


@dataclass(frozen=True)
class RemoteRequest:
    """A request to a replica.

    tokens: the prompt, or the prompt and the tokens that another replica has generated. keys: the keys of the prompt's
    beginnings (runtime/routing/prefix_keys.py). client: on whose behalf a grammar is compiled. engine: the engine and
    the kind of machine that must compute the request, as in ReplicaFacts; None means any. sender, queued: who sends
    it, and how many requests wait there for a replica with room.
    """

    tokens: list[int]
    params: SamplingParams
    keys: tuple[int, ...] = ()
    client: str = ""
    engine: str | None = None
    sender: str = ""
    queued: int = 0


@dataclass(frozen=True)
class ReplicaNews:
    """What is new of a request. engine: as in ReplicaFacts, of the replica that sends it."""

    engine: str
    events: list[EngineEvent]


def failed(error: Exception) -> EngineEvent:
    """Returns the event that ends a request with an error."""
    return EngineEvent(0, 0, finish="error", error_type=type(error).__name__, error=str(error))


def events_of(news: RequestOutput, params: SamplingParams, eos_token_ids: Collection[int]) -> list[EngineEvent]:
    """Returns events that tell what is new of a request.

    news: what RequestNews gave. eos_token_ids: the tokens that end a text; none with ignore_eos.
    """
    scores = [logprob_entries(table) for table in news.prompt_logprobs or () if table is not None]
    times, events = news.metrics, []
    for completion in news.outputs:
        first = completion.index == 0
        if not (completion.token_ids or completion.finish_reason or (first and scores)):
            continue
        events.append(
            EngineEvent(
                request_id=0,
                completion=completion.index,
                tokens=completion.token_ids,
                logprobs=[logprob_entries(table) for table in completion.logprobs or ()],
                prompt_logprobs=scores if first else (),
                finish=completion.finish_reason or "",
                stop_token=_stop_token(completion, params, eos_token_ids),
                prompt_tokens=len(news.prompt_token_ids),
                cached_tokens=times.cached_tokens,
                draft_tokens=times.draft_tokens if first else 0,
                accepted_tokens=times.accepted_tokens if first else 0,
                cumulative_logprob=completion.cumulative_logprob or 0.0,
                queue_s=-1.0 if times.queue_time is None else times.queue_time,
                first_token_s=-1.0 if times.time_to_first_token is None else times.time_to_first_token,
            )
        )
    return events


def logprob_entries(table: dict[int, Logprob]) -> Entries:
    """Returns a table of logprobs as the engine reports it: the sampled token first, then the others."""
    return [(token, entry.logprob, entry.rank) for token, entry in table.items()]


def _stop_token(completion: CompletionOutput, params: SamplingParams, eos_token_ids: Collection[int]) -> int:
    """Returns the token that ended a completion, or -1 if a stop string or a grammar ended it, or nothing has."""
    if completion.finish_reason != "stop" or not completion.token_ids or isinstance(completion.stop_reason, str):
        return -1
    last = completion.token_ids[-1]
    return last if last in params.stop_token_ids or last in eos_token_ids else -1
