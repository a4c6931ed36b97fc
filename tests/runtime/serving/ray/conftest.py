"""A cluster for the tests of replicas; skipped where ray is not installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from support.ray_cluster import Fleets, cluster_of
from support.waiting import PATIENCE

if find_spec("ray") is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own modules use what pydantic deprecates.
        import tensorwright.runtime.serving.ray.cluster  # noqa: F401


@pytest.fixture(scope="module")
def fleets() -> Iterator[Fleets]:
    """Fleets on a cluster of two nodes with two processors each."""
    pytest.importorskip("ray", reason="ray is not installed: pip install -e '.[ray]'")
    from tensorwright.runtime.serving.ray import deployment, remote_client

    with pytest.MonkeyPatch.context() as patch, cluster_of(nodes=2, cpus=2) as cluster:
        # Where all replicas were killed, a busy machine takes longer than that to start the next one.
        patch.setattr(remote_client, "MAX_WITHOUT_REPLICAS", PATIENCE)
        # Nor is a replica there dead that does not answer at once; one that was killed is missed without being asked.
        patch.setattr(deployment, "HEALTH_TIMEOUT", PATIENCE)
        started = Fleets(cluster.address)
        try:
            yield started
        finally:
            started.close()
