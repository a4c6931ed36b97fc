"""The stand-in of the driver, compiled once for the tests of target cuda's runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fake_libcuda import compile_libcuda


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_libcuda(tmp_path_factory.mktemp("libcuda"))
