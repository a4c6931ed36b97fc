"""How TensorRT for RTX is told to run its contexts, and the file of what it compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fake_gpu import CUresult
from support.fake_tensorrt import FakeRuntimeConfig, Graphs, Specialization
from support.made_manifest import make_manifest
from support.made_trt_engine import Stand, make_stand
from support.trt_scenario import expected, made_step
from tensorwright.engine_format.file_names import TENSORRT_ENGINE
from tensorwright.errors import DeviceError, EngineError, InvalidOptionError
from tensorwright.runtime.engine import executors
from tensorwright.runtime.engine.tensorrt.executor import TensorRtOptions
from tensorwright.runtime.engine.tensorrt.runtime_config import KERNELS_VARIABLE, MAX_CACHE_BYTES, RuntimeSettings


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return make_stand(tmp_path, monkeypatch, make_manifest())


def run(stand: Stand, settings: RuntimeSettings | None = None, tokens: int = 1) -> None:
    """Opens the engine, runs a step and closes it."""
    options = TensorRtOptions(settings=settings or RuntimeSettings())
    executor = stand.open(options=options)
    executor.allocate([20, 20], 16, 8, 4)
    step = made_step([0, tokens], [tokens], [[[5]]] * 2)
    assert executor.run(step).argmax(1).tolist() == expected(step, stand.manifest)
    executor.close()
    assert stand.cuda.is_clean()


def cache_file(stand: Stand) -> Path:
    return stand.engine.path / (TENSORRT_ENGINE + ".cache")


@pytest.mark.parametrize("kernels", ["lazy", "eager", "none"])
@pytest.mark.parametrize("graphs", [False, True])
def test_graphs_are_for_decode_steps_and_kernels_for_all(stand: Stand, kernels: str, graphs: bool) -> None:
    run(stand, RuntimeSettings(kernels, graphs))
    how = Specialization[kernels.upper()]
    decode = Graphs.WHOLE_GRAPH_CAPTURE if graphs else Graphs.DISABLED
    assert stand.trt.contexts == [(how, Graphs.DISABLED), (how, decode)]


def test_what_was_compiled_is_there_at_the_next_start(stand: Stand) -> None:
    run(stand)
    first = cache_file(stand).read_bytes()
    written = cache_file(stand).stat().st_mtime_ns
    run(stand)
    assert cache_file(stand).stat().st_mtime_ns == written, "nothing new was compiled, and it was written again"
    run(stand, tokens=2)
    assert cache_file(stand).read_bytes().startswith(first)
    assert len(cache_file(stand).read_bytes()) > len(first)
    assert [path.name for path in cache_file(stand).parent.iterdir() if "cache" in path.name] == ["rank0.engine.cache"]


def test_a_cache_of_another_version_is_replaced(stand: Stand) -> None:
    cache_file(stand).write_bytes(b"1.2.3\nother kernels")
    run(stand)
    assert b"other kernels" not in cache_file(stand).read_bytes()


@pytest.mark.parametrize("kind", ["folder", "large"])
def test_a_cache_that_cannot_be_read_is_named(stand: Stand, kind: str) -> None:
    if kind == "folder":
        cache_file(stand).mkdir()
    else:
        with cache_file(stand).open("wb") as file:
            file.truncate(MAX_CACHE_BYTES + 1)
    executor = stand.open()
    with pytest.raises(EngineError, match=r"rank0\.engine\.cache: .*; remove it"):
        executor.allocate([20, 20], 16, 8, 4)
    executor.close()
    assert stand.cuda.is_clean()


def test_a_folder_that_cannot_be_written_costs_no_more_than_the_cache(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tensorwright.runtime.engine.tensorrt.runtime_config.os.replace", refuse)
    run(stand)
    assert "compiled kernels are not kept" in caplog.text
    assert not [path for path in cache_file(stand).parent.iterdir() if "cache" in path.name]


def test_a_broken_device_writes_no_cache(stand: Stand) -> None:
    executor = stand.open()
    executor.allocate([20, 20], 16, 8, 4)
    stand.cuda.broken = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    executor.close()
    assert not cache_file(stand).exists()


def test_an_engine_that_no_graph_can_hold_is_refused_when_graphs_are_asked_for(stand: Stand) -> None:
    stand.trt.capturable = False
    run(stand)
    executor = stand.open(options=TensorRtOptions(settings=RuntimeSettings(graphs=True)))
    with pytest.raises(EngineError, match="CUDA graphs cannot replay the steps of this engine"):
        executor.allocate([20, 20], 16, 8, 4)
    executor.close()
    assert stand.cuda.is_clean()


def test_a_setting_that_the_library_does_not_take_is_named(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    stays = property(lambda self: Graphs.DISABLED, lambda self, value: None)
    monkeypatch.setattr(FakeRuntimeConfig, "cuda_graph_strategy", stays, raising=False)
    executor = stand.open(options=TensorRtOptions(settings=RuntimeSettings(graphs=True)))
    with pytest.raises(DeviceError, match="the library took"):
        executor.allocate([20, 20], 16, 8, 4)
    executor.close()


def test_full_tensorrt_has_no_such_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = make_stand(tmp_path, monkeypatch, replace(make_manifest(), flavour="tensorrt"))
    run(stand)
    assert not cache_file(stand).exists()
    with pytest.raises(InvalidOptionError, match="are for target tensorrt-rtx"):
        stand.open(options=TensorRtOptions(settings=RuntimeSettings("eager")))


def test_words_and_ranks_are_checked() -> None:
    with pytest.raises(InvalidOptionError, match="lazy, eager, none, got 'fast'"):
        RuntimeSettings("fast")
    with pytest.raises(InvalidOptionError, match="CUDA graphs of 2 ranks"):
        RuntimeSettings(graphs=True).check("tensorrt-rtx", ranks=2)


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, RuntimeSettings()),
        ({executors.CUDA_GRAPHS: "1"}, RuntimeSettings(graphs=True)),
        ({executors.CUDA_GRAPHS: "0", KERNELS_VARIABLE: "none"}, RuntimeSettings("none")),
    ],
)
def test_the_environment_says_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], settings: RuntimeSettings
) -> None:
    got = []
    name = "tensorwright.runtime.engine.tensorrt.executor.TensorRtExecutor"
    monkeypatch.setattr(name, lambda engine, options, group: got.append(options))
    for variable in (executors.CUDA_GRAPHS, KERNELS_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    opening: Any = SimpleNamespace(device=None, gpu_memory=0.5, group=None)
    executors.EXECUTORS["tensorrt-rtx"].open(stand.engine, opening)
    assert got == [TensorRtOptions(0, 0.5, settings)]
    monkeypatch.setenv(KERNELS_VARIABLE, "quick")
    with pytest.raises(InvalidOptionError, match="TENSORWRIGHT_TENSORRT_KERNELS must be one of lazy, eager, none"):
        executors.EXECUTORS["tensorrt-rtx"].open(stand.engine, opening)
