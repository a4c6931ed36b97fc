"""Networks of plugins, built by TensorRT for RTX in child processes. Without that package the builds are skipped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.plugin_builds import PluginBuilds

collect_ignore = []
if any(importlib.util.find_spec(name) is None for name in ("tensorrt_rtx", "onnx", "triton")):
    collect_ignore += ["test_builds.py", "test_plugins.py"]


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """$XDG_CACHE_HOME of all tests here. Empty at first: nothing may hang on what a machine compiled before."""
    return tmp_path_factory.mktemp("gpu-kernels")


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> PluginBuilds:
    return PluginBuilds(tmp_path_factory.mktemp("tensorrt-plugins"), kernel_cache)
