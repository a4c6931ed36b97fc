"""Connects to a Ray cluster, or starts one on this machine, and runs the applications of engines there."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus, LoggingConfig

from tensorwright.errors import EngineError, InvalidOptionError
from tensorwright.runtime.base.host import default_threads
from tensorwright.runtime.serving.ray.deployment import DEPLOYMENT
from tensorwright.runtime.serving.ray.replica import ReplicaFacts

logger = logging.getLogger("tensorwright.server")
OBJECT_STORE = 128 << 20
"""The bytes of the object store of a cluster that starts here. Requests and tokens are too small to go there."""
POLL = 0.1
FACTS_TIMEOUT = 60.0
"""The seconds in which a replica must say what it is; a busy one answers when it has room."""
REPLACE_TIMEOUT = 3600.0
"""The seconds in which all replicas must have been replaced."""


@contextmanager
def connected(address: str | None, cpus: float) -> Iterator[None]:
    """Connects this process to a cluster while the context lasts.

    address: None starts a cluster on this machine, which ends with the context. cpus: what the replicas reserve
    together; a cluster that starts here has at least so many. Raises InvalidOptionError if there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Nothing of what runs here is reported to anybody.
    if address is not None and address.startswith("ray://"):
        raise InvalidOptionError(
            f"ray_address must be that of the cluster itself (HOST:PORT or auto), not of its client server, got "
            f"{address!r}: run this server on one of the cluster's machines"
        )
    _log_like_the_rest()
    quiet: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
    if address is None:
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=max(default_threads(), math.ceil(cpus)),
            object_store_memory=OBJECT_STORE,
            **quiet,
        )
    else:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InvalidOptionError(
                f"ray_address: no cluster of Ray {version('ray')} answers at {address}: {error}"
            ) from error
    try:
        serve.start(proxy_location="Disabled", logging_config=LoggingConfig(log_level="WARNING"))
        _log_like_the_rest()
        yield
    finally:
        if address is None:
            serve.shutdown()
        ray.shutdown()


def _log_like_the_rest() -> None:
    """Sends the warnings of Ray and Ray Serve in this process where all logs go, in place of handlers of their own."""
    for name in ("ray", "ray.serve"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING)
        if _is_warning not in logger.filters:  # Ray Serve sets the level anew as it starts.
            logger.addFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def find_application(name: str, form: str) -> DeploymentHandle | None:
    """Returns the handle of the replicas of an application that runs already, or None if there is none of this name, or
    it was made otherwise. form: as `form_of` says how it would be made now."""
    running = serve.status().applications.get(name)
    if running is None or running.status != ApplicationStatus.RUNNING or DEPLOYMENT not in running.deployments:
        return None
    handle, facts = ask_for_facts(serve.get_deployment_handle(DEPLOYMENT, name))
    if facts.form == form:
        return handle
    handle.shutdown()
    return None


def ask_for_facts(handle: DeploymentHandle) -> tuple[DeploymentHandle, ReplicaFacts]:
    """Returns a handle that has a router, and what a replica says of itself.

    All handles that are made from this one share its router. Whoever has it calls `shutdown` on one of them before the
    connection ends: the router reports to the cluster until then.
    """
    asking = handle.options(method_name="facts")
    try:
        return asking, asking.remote().result(timeout_s=FACTS_TIMEOUT)
    except BaseException:
        asking.shutdown()
        raise


def run_application(application: Application, name: str, timeout: float) -> DeploymentHandle:
    """Runs an application, or replaces all replicas of the one of that name, and waits until it is ready.

    Raises EngineError if the replicas do not start, with the reason of one of them; InvalidOptionError if they are not
    ready in `timeout` seconds.
    """
    serve.run_many(
        [serve.RunTarget(target=application, name=name, route_prefix=None)], wait_for_applications_running=False
    )
    deadline = time.monotonic() + timeout
    while True:
        status = serve.status().applications[name]
        if status.status == ApplicationStatus.RUNNING:
            return serve.get_deployment_handle(DEPLOYMENT, name)
        words = " ".join(part for part in (status.message, *_words(status)) if part)
        if status.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
            raise EngineError(f"the replicas of {name} do not start: {words}")
        if time.monotonic() > deadline:
            raise InvalidOptionError(
                f"the replicas of {name} are not ready after {timeout:g} seconds (the cluster has "
                f"{ray.cluster_resources().get('CPU', 0):g} processors, {ray.available_resources().get('CPU', 0):g} "
                f"of them free): {words}"
            )
        time.sleep(POLL)


def _words(status: Any) -> Iterator[str]:
    """Yields what the deployments of an application say of their state, without tracebacks."""
    for deployment in status.deployments.values():
        lines = [line for line in deployment.message.splitlines() if line.strip() and not line.startswith(" ")]
        yield " ".join(lines[-2:])


def end_application(name: str) -> None:
    serve.delete(name)
