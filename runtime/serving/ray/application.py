"""Makes a whole Ray Serve application of one engine: its replicas, and the server in front of them behind Ray's proxy.

It is for `serve run` and `serve deploy`. `tensorwright serve --ray` needs it not: there the server is a process of its
own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import Door, find, options_at
from tensorwright.options.engine import EngineFields
from tensorwright.options.ray import RayFields
from tensorwright.options.server import NetworkFields, ServerFields
from tensorwright.runtime.base.keywords import closest
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.serving.ray.deployment import DEPLOYMENT, engine_application
from tensorwright.runtime.serving.ray.fleet import OF_FRONT, remote_llm
from tensorwright.runtime.serving.ray.settings import RaySettings
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions

OF_CLUSTER = ("ray", "ray_address", "ray_app", "keep_replicas", "replica_start_timeout")
"""The options that `serve run` has in another form."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of an application. path: the engine's. options: keywords of LLM. front: what of them the server
    reads, and the replicas do not."""

    path: str
    name: str
    options: dict[str, Any]
    front: dict[str, Any]
    ray: RaySettings
    server: ServerOptions


def split_arguments(args: dict[str, Any]) -> Arguments:
    """Returns the checked arguments of `application`. Raises InvalidOptionError."""
    given = dict(args)
    engine = os.path.realpath(given.pop("engine", ""))
    name = given.pop("name", None) or Path(engine).name
    known = {record: _names(record) for record in (EngineFields, ServerFields, RayFields)}
    names = {name for record in known.values() for name in record}
    for word in given:
        if word not in names:
            raise InvalidOptionError(f"the application has no option {word!r}; {closest(word, names)}")
    ray = RaySettings(ray=True, **_taken(given, known[RayFields]))
    server = ServerOptions(**_taken(given, known[ServerFields]))
    front = _taken(given, OF_FRONT)
    return Arguments(engine, name, given, front, ray, server)


def application(args: dict[str, Any]) -> Application:
    """Returns the application, for `serve run tensorwright.runtime.serving.ray.application:application engine=PATH`.

    args: `engine`, a path that each machine has; `name`, which is the path's last part by default; and options of
    `tensorwright serve` with their names in Python (max_batch_size). Options of connections do not exist here, for
    the connections are Ray's. Raises InvalidOptionError for a name that does not exist.
    """
    given = split_arguments(args)
    drain = find(NetworkFields, "drain_timeout").default
    replicas = engine_application(given.path, given.options, given.ray, drain, given.server.max_stall_seconds)
    ingress = serve.deployment(
        name="server",
        max_ongoing_requests=given.server.max_waiting_jobs,
        graceful_shutdown_timeout_s=drain,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )(serve.ingress(_on_a_thread(partial(_make_app, given)))())
    return ingress.bind(replicas)


def _names(record: type) -> tuple[str, ...]:
    return tuple(option.name for option in options_at(Door.SERVE, record) if option.name not in OF_CLUSTER)


def _taken(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Removes the options of these names from `given`, and returns them."""
    return {name: given.pop(name) for name in names if name in given}


def _on_a_thread(make: Callable[[], FastAPI]) -> Callable[[], FastAPI]:
    """Returns a function that runs `make` in a thread. Ray Serve makes the application in its event loop, where nothing
    may wait for replicas."""

    def made() -> FastAPI:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(make).result()

    return made


def _make_app(given: Arguments) -> FastAPI:
    """Returns the server's application over the replicas of the same Ray Serve application."""
    handle = serve.get_deployment_handle(DEPLOYMENT, serve.get_replica_context().app_name)
    engine = open_engine(given.path, read_tokenizer=True)
    engine.config.require_generation(engine.path, "serving on Ray")
    model = remote_llm(engine, handle, given.options, given.ray.resume, given.front)
    return create_app({given.name: model}, given.server)
