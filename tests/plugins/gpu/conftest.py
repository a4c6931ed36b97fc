"""One interpreter and one cache of compiled kernels for all tests of GPU kernels. Without Triton they are skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorwright.plugins.gpu.interpret import Interpreter

FOLDER = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("triton") is None:
        reason = pytest.mark.skip(reason="Triton is not installed: GPU kernels can be neither compiled nor interpreted")
        for item in items:
            if FOLDER in item.path.parents:
                item.add_marker(reason)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as interpreter:
        yield interpreter


@pytest.fixture(scope="session")
def kernel_cache(cache_home: Path) -> Path:
    """The folder of compiled kernels, which all tests of a run share."""
    return cache_home / "tensorwright" / "gpu-kernels"
