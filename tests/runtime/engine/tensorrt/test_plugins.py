"""Our plugins beneath an engine, in the real library: known, their errors told once, their kernels unloaded."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_gpu import FakeCuda
from support.made_manifest import make_manifest
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE
from tensorwright.errors import EngineError
from tensorwright.runtime.engine.tensorrt.library import NAMESPACE, LoadedEngine
from tensorwright.runtime.engine.tensorrt.plugins import EnginePlugins

pytest.importorskip("tensorwright.plugins.gpu.creators")
trt = pytest.importorskip("tensorrt_rtx")


def test_the_library_knows_every_plugin_once_an_engine_has_them() -> None:
    EnginePlugins(trt, FakeCuda())
    EnginePlugins(trt, FakeCuda())  # of a second engine
    registry = trt.get_plugin_registry()
    of_ranks = ("AllReduce", "AllGather", "Send", "Receive")
    for name in ("PagedAttention", "RotaryKvWrite", "AddRmsNorm", "RmsNorm", "WeightOnlyLinear", *of_ranks):
        assert registry.get_creator(name, "1", NAMESPACE) is not None
        assert registry.get_creator(name, "2", NAMESPACE) is None


def test_what_a_plugin_raised_is_told_once() -> None:
    from tensorwright.plugins.gpu.build_context import run_context

    before, plugins = run_context(), EnginePlugins(trt, FakeCuda())
    plugins.raise_first()
    with plugins.loading():
        made_for = run_context()
    assert run_context() is before
    made_for.note("PagedAttention layers.0, enqueue", EngineError("its kernels were altered"))
    with pytest.raises(EngineError, match="its kernels were altered"):
        plugins.raise_first()
    plugins.raise_first()
    plugins.close()


def test_a_plan_that_the_library_refuses_is_told_with_its_words(tmp_path: Any) -> None:
    (tmp_path / "tensorrt").mkdir()
    (tmp_path / "tensorrt" / "rank0.engine").write_bytes(b"no plan" * 1000)
    says = r"rank0\.engine: the library cannot take in this plan on this GPU \(.*magicTag"
    with pytest.raises(EngineError, match=says):
        LoadedEngine(trt, make_manifest(), tmp_path / ENGINE_FILE, FakeCuda())


def test_a_plugin_of_another_version_is_named(tmp_path: Any) -> None:
    with pytest.raises(EngineError, match="has layers of plugin PagedAttention, version 9, which this tensorwright"):
        LoadedEngine(trt, make_manifest(plugins={"PagedAttention": "9"}), tmp_path / ENGINE_FILE, FakeCuda())
