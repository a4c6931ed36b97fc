"""A Ray cluster of several nodes on this machine, and the processes of the replicas on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE, wait_until

OBJECT_STORE = 80 << 20  # the smallest that Ray takes
SMALL = {"kv_cache_memory": "32MiB", "threads": 1, "max_queue_size": 64}
APPLICATION = "tensorwright-m"


PATIENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": f"{PATIENCE * 1000:.0f}",
    "RAY_health_check_timeout_ms": f"{PATIENCE * 1000:.0f}",
    "RAY_worker_register_timeout_seconds": f"{PATIENCE:.0f}",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1",
}
"""The environment of a cluster's processes. On a busy machine Ray would take a node or a worker for dead that is only
slow, and a worker of a low priority would wait for all else that computes. Workers that nobody asked for
do not start, and a replica that cannot start is tried once."""


@contextmanager
def cluster_of(nodes: int, cpus: int) -> Iterator[Any]:
    """Nodes with so many processors each, of which one is the head. Each is as good as a machine of its own: a process
    of Ray's, with an object store and workers."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE, "include_log_monitor": False}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENT.items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            for _ in range(nodes - 1):
                made.add_node(**node)
            yield made
        finally:
            made.shutdown()


class Fleets:
    """Starts fleets of one engine, called "m", on a cluster. Each ends when the next one starts."""

    def __init__(self, address: str):
        self.address = address
        self._running = ExitStack()

    def start(self, engine: Path, options: dict[str, Any] | None = None, **settings: Any) -> Any:
        from tensorwright.runtime.serving.ray.fleet import running_fleet
        from tensorwright.runtime.serving.ray.settings import RaySettings

        self.close()
        chosen = RaySettings(ray=True, ray_address=self.address, **settings)
        return self._running.enter_context(
            running_fleet({"m": engine}, {**SMALL, **(options or {})}, chosen, drain_timeout=60, max_stall_seconds=60)
        )

    def close(self) -> None:
        """Ends the fleet, and waits for its processes: Ray forgets a replica before its process has ended."""
        self._running.close()
        wait_until(lambda: replicas() == [], "a fleet that was ended has no processes")


def replicas() -> list[int]:
    """The processes of the replicas of engine "m"."""
    return replicas_of(APPLICATION)


def replicas_of(application: str) -> list[int]:
    """The processes of an application's replicas."""
    title = f"ray::ServeReplica:{application}:engine".encode()
    return [pid for pid, line in _command_lines() if line.startswith(title)]


def _command_lines() -> Iterator[tuple[int, bytes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), (folder / "cmdline").read_bytes()
            except OSError:
                continue  # It has just ended.


def kill(pid: int) -> None:
    """Ends a replica's process as a crash would, and waits until it is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in replicas())
