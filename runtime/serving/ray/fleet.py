"""Runs the engines of one server as replicas on Ray Serve: starts them, replaces them, and ends them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ray.serve.handle import DeploymentHandle

from tensorwright.errors import TensorwrightError
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.serving.ray.cluster import (
    REPLACE_TIMEOUT,
    ask_for_facts,
    connected,
    end_application,
    find_application,
    run_application,
)
from tensorwright.runtime.serving.ray.deployment import (
    engine_application,
    form_of,
    most_requests,
    processors,
)
from tensorwright.runtime.serving.ray.live_routers import replicas_of
from tensorwright.runtime.serving.ray.remote_client import Limits, RemoteClient
from tensorwright.runtime.serving.ray.remote_llm import RemoteLLM, require_replaceable
from tensorwright.runtime.serving.ray.settings import RaySettings

logger = logging.getLogger("tensorwright.server")
OF_FRONT = ("chat_template", "tool_parser", "reasoning_parser", "generation_config")
"""The options of an engine that the server reads, and the replicas do not."""


@contextmanager
def running_fleet(
    places: Mapping[str, Path],
    options: dict[str, Any],
    settings: RaySettings,
    drain_timeout: float,
    max_stall_seconds: float,
) -> Iterator[Fleet]:
    """Connects to the cluster, starts the replicas of all engines, and ends them with the context.

    places: the folder of each engine by its name. options: keywords of LLM. Raises EngineError and InvalidOptionError.
    """
    opened = {name: open_engine(os.path.realpath(path), read_tokenizer=True) for name, path in places.items()}
    for engine in opened.values():
        engine.config.require_generation(engine.path, "serving on Ray")
    most = settings.max_replicas or settings.replicas
    with ExitStack() as stack:
        stack.enter_context(connected(settings.ray_address, len(places) * most * processors(options, settings)))
        fleet = Fleet(places, options, settings, drain_timeout, max_stall_seconds)
        stack.callback(fleet.close)
        for name, engine in opened.items():
            fleet.start(name, engine)
        yield fleet


class Fleet:
    """The replicas of all engines of one server. models: what the server serves, by name."""

    def __init__(
        self,
        places: Mapping[str, Path],
        options: dict[str, Any],
        settings: RaySettings,
        drain_timeout: float,
        max_stall_seconds: float,
    ):
        self.models: dict[str, RemoteLLM] = {}
        self._places = places
        self._options = dict(options)
        self._front = {name: self._options.pop(name, None) for name in OF_FRONT}
        self._settings = settings
        self._drain_timeout = drain_timeout
        self._max_stall_seconds = max_stall_seconds
        self._replacing = threading.Lock()
        self._started: list[str] = []  # the names of applications

    def start(self, name: str, engine: EngineDir) -> None:
        """Starts the replicas of one engine and waits until they are ready."""
        self._started.append(self._application(name))
        handle = self._run(name, engine, self._settings.replica_start_timeout)
        front = {key: value[name] if isinstance(value, dict) else value for key, value in self._front.items()}
        self.models[name] = remote_llm(engine, handle, self._options, self._settings.resume, front)

    def replace(self, name: str, engine: EngineDir) -> None:
        """Replaces the replicas of a served engine by replicas of another one, one after the other.

        Each finishes the requests that it has begun, for at most drain_timeout seconds. Raises InvalidOptionError if
        requests cannot pass from one engine to the other, and EngineError if the new replicas do not start; the old
        ones then go on.
        """
        with self._replacing:
            model = self.models[name]
            if engine.digest == model.engine.digest:
                return
            require_replaceable(model.engine, engine)
            self._run(name, engine, REPLACE_TIMEOUT).shutdown()  # The model has a handle of its own.
            model.take_engine(engine)

    def reload(self) -> None:
        """Replaces the replicas of each engine whose path now leads to another engine. What fails is logged, and leaves
        the engine as it was."""
        for name, path in self._places.items():
            try:
                engine = open_engine(os.path.realpath(path), read_tokenizer=True)
                before = self.models[name].engine.path
                self.replace(name, engine)
                logger.info("reloaded", extra={"facts": {"model": name, "from": str(before), "to": str(engine.path)}})
            except TensorwrightError as error:
                logger.error("the engine was not replaced", extra={"facts": {"model": name, "reason": str(error)}})

    def close(self) -> None:
        """Ends all requests, and the replicas unless they are to be kept."""
        for model in self.models.values():
            model.shutdown()
        if not self._settings.keep_replicas:
            for application in self._started:
                end_application(application)

    def _application(self, name: str) -> str:
        return f"{self._settings.ray_app}-{name}"

    def _run(self, name: str, engine: EngineDir, timeout: float) -> DeploymentHandle:
        """Runs the replicas of an engine, unless they run already as they are to."""
        made_of = (
            str(engine.path),
            self._options,
            self._settings,
            self._drain_timeout,
            self._max_stall_seconds,
            engine.digest,
        )
        if (found := find_application(self._application(name), form_of(*made_of))) is not None:
            return found
        return run_application(engine_application(*made_of), self._application(name), timeout)


def remote_llm(
    engine: EngineDir,
    handle: DeploymentHandle,
    options: Mapping[str, Any],
    resume: bool,
    front: Mapping[str, Any],
) -> RemoteLLM:
    """Returns the model whose requests the replicas behind `handle` compute.

    engine: as this machine has it. options: the keywords of LLM that the replicas got. resume: whether a request goes
    on elsewhere when its replica is lost. front: the keywords of OF_FRONT; None means the default. Raises
    InvalidOptionError if the replicas run another engine.
    """
    asked, facts = ask_for_facts(handle)
    limits = Limits(facts.options.max_batch_size, most_requests(options), facts.options.max_queue_size)
    client = RemoteClient(asked, partial(replicas_of, asked.app_name), limits, resume)
    try:
        given = {name: value for name, value in front.items() if value is not None}
        return RemoteLLM(engine, facts, client, **given)
    except BaseException:
        client.close()
        raise
