"""A cluster for the tests of replicas; skipped where ray is not installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from support.ray_cluster import Fleets, cluster_of

if find_spec("ray") is not None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own modules use what pydantic deprecates.
        import ray.serve  # noqa: F401


@pytest.fixture(scope="module")
def fleets() -> Iterator[Fleets]:
    """Fleets on a cluster of two nodes with two processors each."""
    pytest.importorskip("ray", reason="ray is not installed: pip install -e '.[ray]'")
    with cluster_of(nodes=2, cpus=2) as cluster:
        started = Fleets(cluster.address)
        try:
            yield started
        finally:
            started.close()
