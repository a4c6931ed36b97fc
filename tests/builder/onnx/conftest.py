"""What the tests of ONNX models share."""

from __future__ import annotations

import functools

import pytest

from support.cached_graphs import cached_case


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory):
    """variant -> its checkpoint and graph at stage "cached", traced once."""
    return functools.cache(functools.partial(cached_case, tmp_path_factory))
