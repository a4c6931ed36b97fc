"""Tests that run on an NVIDIA GPU. Without one they are skipped, with the reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tensorwright.errors import MissingDependencyError

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"))


@pytest.fixture(scope="session")
def device() -> Any:
    """It runs launches as the interpreter does; so the tests of tests/plugins/gpu run on it."""
    pytest.importorskip("triton", reason="Triton is not installed: GPU kernels cannot be compiled")
    from gpu_device import Device

    try:
        return Device()
    except MissingDependencyError as error:
        pytest.skip(str(error))
