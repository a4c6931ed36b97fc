"""The server's pools of threads: which kinds of work have their own, and who works on whose behalf."""

from __future__ import annotations

import os
from collections.abc import Iterator

from starlette.types import Scope

from tensorwright.runtime.guided.compile_queue import PLACES, SLOW_PLACES
from tensorwright.runtime.serving.server.hosts import address_of
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.work_pool import WorkPool

MOST_TEXT_THREADS = 4


class ServerPools:
    """grammar: requests with a new grammar or schema, from text to start. text: large bodies, chat templates, token ids
    of texts and back. answers: answers in one piece, of requests that ran. other: files and metrics.

    A job of each is bounded in work. All but answers refuse what exceeds `max_waiting_jobs` of the options; an answer
    is never refused, for the engine's own bounds are those of its request.
    """

    def __init__(self, options: ServerOptions):
        self._limit = options.max_job_seconds
        bound = options.max_waiting_jobs
        self.grammar = WorkPool("grammars", 2 * (PLACES + SLOW_PLACES), bound)  # some wait for others
        self.text = WorkPool("text", max(2, min(MOST_TEXT_THREADS, os.cpu_count() or 1)), bound)
        self.answers = WorkPool("answers", 2, None)
        self.other = WorkPool("files", 2, bound)

    def __iter__(self) -> Iterator[WorkPool]:
        return iter((self.grammar, self.text, self.answers, self.other))

    def stuck(self) -> list[str]:
        """Names of the pools whose oldest running job is older than `max_job_seconds` of the options."""
        return [pool.name for pool in self if pool.state().oldest > self._limit]

    def close(self) -> None:
        for pool in self:
            pool.close()


def client_of(scope: Scope) -> str:
    """Whose turn a request takes in a pool: that of its key, if one was asked for and is known, else of its address. A
    header alone makes nobody another client."""
    key = scope["state"].get("key")
    return address_of(scope) if key is None else f"key {key}"
