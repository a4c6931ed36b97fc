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
def builds(tmp_path_factory: pytest.TempPathFactory, cache_home: Path) -> PluginBuilds:
    return PluginBuilds(tmp_path_factory.mktemp("tensorrt-plugins"), cache_home)
