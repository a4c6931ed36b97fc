"""Fixtures of the tests of target cuda's builder: graphs of the tiny models, and one interpreter of kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from support.cached_graphs import Case, cached_case
from tensorwright.plugins.gpu.interpret import Interpreter


@pytest.fixture(scope="session")
def case(tmp_path_factory) -> Callable[..., Case]:
    return functools.cache(functools.partial(cached_case, tmp_path_factory))


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as found:
        yield found
