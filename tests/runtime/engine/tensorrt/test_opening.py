"""What is absent, of another version or for another GPU: one typed error, with the remedy, and nothing is kept."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fake_gpu import CUresult, FakeCuda
from support.made_manifest import make_manifest
from support.made_trt_engine import Stand, make_stand, write_trt_engine
from support.trt_scenario import run_scenario
from tensorwright.engine_format.engine_config import Limits
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, MANIFEST_FILE
from tensorwright.errors import DeviceError, EngineError, InvalidOptionError, MissingDependencyError, OutOfMemoryError
from tensorwright.runtime.engine.tensorrt.executor import TensorRtExecutor, TensorRtOptions, read_manifest


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return make_stand(tmp_path, monkeypatch, make_manifest())


class NoDriver:
    """What cuda-bindings does without libcuda."""

    def cuInit(self, flags: int) -> Any:
        raise RuntimeError('"cuda" is an NVIDIA driver library and can only be found via system search')


def test_without_a_driver_one_sentence_says_so(stand: Stand) -> None:
    with pytest.raises(MissingDependencyError) as refusal:
        TensorRtExecutor(stand.engine, bindings=stand.trt, driver=NoDriver())
    assert str(refusal.value) == (
        "TensorRT engines run on an NVIDIA GPU, and there is no NVIDIA driver here (libcuda.so.1 is not found): "
        "install the driver or run the engine on a machine that has one; build-engine --target cpu makes an engine "
        "that needs none"
    )


def test_the_real_module_without_a_driver_says_the_same(stand: Stand) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    try:
        driver.cuInit(0)
    except RuntimeError:
        with pytest.raises(MissingDependencyError, match="there is no NVIDIA driver here"):
            TensorRtExecutor(stand.engine, bindings=stand.trt)
    else:
        pytest.skip("this machine has an NVIDIA driver")


def test_the_real_module_takes_every_call_as_it_is_made(stand: Stand) -> None:
    """It converts arguments before it looks for libcuda: a wrong type would be a TypeError."""
    driver = pytest.importorskip("cuda.bindings.driver")
    try:
        driver.cuInit(0)
    except RuntimeError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver, and the calls name made-up memory")
    run_scenario(stand, stand.open())
    stand.open().kv_cache_bytes(None, max_batch_size=4, max_num_tokens=16, max_rows=8)
    calls = {call[0]: call for call in stand.cuda.calls if call[0].startswith("cu")}
    assert len(calls) == 20
    made_up = {"cuDeviceGetAttribute": driver.CUdevice_attribute, "cuCtxSetCurrent": driver.CUcontext}
    for name, *args in calls.values():
        if name in made_up:
            args[0] = made_up[name](int(args[0]))
        with pytest.raises(RuntimeError, match="NVIDIA driver library"):
            getattr(driver, name)(*args)


def test_a_driver_without_a_gpu_and_a_gpu_that_there_is_not(stand: Stand) -> None:
    stand.cuda.devices = 0
    with pytest.raises(MissingDependencyError, match=r"no NVIDIA driver here \(cuInit says CUDA_ERROR_NO_DEVICE\)"):
        stand.open()
    stand.cuda.devices = 2
    with pytest.raises(MissingDependencyError, match="was to run on GPU 2, but this machine has 2 of them"):
        stand.open(options=TensorRtOptions(device=2))
    executor = stand.open(options=TensorRtOptions(device=1))
    assert ("cuDevicePrimaryCtxRetain", 1) in stand.cuda.calls
    executor.close()


@pytest.mark.parametrize("changes", [{"device": -1}, {"memory_share": 0.0}, {"memory_share": 1.1}])
def test_impossible_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match="device must be 0 or more and memory_share above 0"):
        TensorRtOptions(**changes)


@pytest.mark.parametrize(
    ("flavour", "missing", "says"),
    [
        ("tensorrt", "tensorrt", r"needs the package tensorrt .*pip install -e '.\[tensorrt\]'"),
        ("tensorrt-rtx", "tensorrt_rtx", r"needs the package tensorrt_rtx .*'.\[tensorrt-rtx\]'"),
        ("tensorrt-rtx", "cuda.bindings.driver", r"cuda-bindings .*pip install -e '.\[tensorrt-rtx\]'"),
    ],
)
def test_an_absent_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: str, missing: str, says: str
) -> None:
    stand = make_stand(tmp_path, monkeypatch, make_manifest(flavour=flavour))
    real = importlib.import_module

    def without(name: str, *rest: Any) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return stand.trt if name.startswith("tensorrt") else real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingDependencyError, match=says):
        TensorRtExecutor(stand.engine)


def test_an_engine_of_another_version_names_both(stand: Stand) -> None:
    stand.trt.__version__ = "1.8.0.5"
    says = r"rank0\.engine: built with tensorrt_rtx 1\.7\.1\.116, and 1\.8\.0\.5 is installed: install version 1\.7\.1,"
    with pytest.raises(EngineError, match=says):
        stand.open()
    stand.trt.__version__ = "1.7.1.200"  # another build of the same release
    stand.open().close()


@pytest.mark.parametrize(
    ("sm", "changes", "says"),
    [
        (86, {}, "is of SM 86, and the engine was built for SM 80, 89: build it again with --sm 86"),
        (90, {}, "TensorRT-RTX does not run on this GPU, Fake GPU, whose SM is 90: take a GPU of SM 80"),
        (100, {"sms": ()}, "TensorRT-RTX does not run on this GPU, Fake GPU, whose SM is 100"),
        (75, {"sms": ()}, "and the engine runs on SM 80 and later: build it again with --sm 75"),
        (86, {"sms": (), "kernel_sms": (89,)}, "has kernels for SM 89 and later: build it again with --sm 86"),
        (90, {"flavour": "tensorrt"}, "was built for SM 80, 89: build it again on a machine with this GPU"),
    ],
)
def test_an_engine_for_another_gpu_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sm: int, changes: dict[str, Any], says: str
) -> None:
    stand = make_stand(tmp_path, monkeypatch, make_manifest(**changes), sm=sm)
    with pytest.raises(EngineError, match=says) as refusal:
        stand.open()
    assert "this GPU, Fake GPU," in str(refusal.value)
    assert stand.cuda.is_clean()
    assert "deserialize" not in stand.cuda.names()


@pytest.mark.parametrize(("sm", "sms"), [(80, (80, 89)), (86, ()), (120, ())])
def test_an_engine_for_this_gpu_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sm: int, sms: tuple[int, ...]
) -> None:
    make_stand(tmp_path, monkeypatch, make_manifest(sms=sms), sm=sm).open().close()


def test_a_plan_that_does_not_deserialize_says_what_the_library_logged(stand: Stand) -> None:
    (stand.engine.path / ENGINE_FILE).write_bytes(b"altered")
    with pytest.raises(EngineError, match=r"rank0\.engine: the library cannot take in .* \(magicTag is wrong\); build"):
        stand.open()
    assert stand.cuda.is_clean()


def test_a_plugin_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = make_stand(tmp_path, monkeypatch, make_manifest())
    stand.trt.manifest = replace(stand.manifest, plugins={"PagedAttention": "1"})
    with pytest.raises(EngineError, match="has layers of plugin RotaryKvWrite, version 1, which this tensorwright"):
        stand.open()
    assert stand.cuda.is_clean()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": 12}, r"logits of shape \(-1, 12\), not \(-1, 11\)"),
        ({"dtype": "bfloat16", "kv_dtype": "bfloat16"}, r"k_pages\.0 of .*, not float16"),
        ({"kv_dtype": "int8"}, "a k_scales.0"),
        ({"group_windows": (0,), "layers": make_manifest().layers[:1]}, r"no k_pages\.1; .*no v_pages_out\.1"),
        ({"profiles": make_manifest().profiles[:1]}, "1 profiles, not 2"),
    ],
)
def test_a_plan_that_is_not_the_manifests_is_refused_with_every_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], says: str
) -> None:
    stand = make_stand(tmp_path, monkeypatch, make_manifest())
    stand.trt.manifest = make_manifest(**changes)
    with pytest.raises(EngineError, match=says) as refusal:
        stand.open()
    assert "files of two builds are mixed" in str(refusal.value)
    assert stand.cuda.is_clean()


def test_config_and_manifest_must_be_of_one_build(tmp_path: Path) -> None:
    manifest = make_manifest()
    limits = Limits(max_seq_len=64, block_size=8, kv_block_bytes=sum(manifest.block_bytes))
    engine = write_trt_engine(tmp_path, manifest, limits=limits)
    with pytest.raises(EngineError, match=r"config\.json: block_size is 8, but 4 in tensorrt/io\.json"):
        TensorRtExecutor(engine)


@pytest.mark.parametrize("name", ["target", "dtype"])
def test_config_and_manifest_name_one_target_and_type(tmp_path: Path, name: str) -> None:
    engine = write_trt_engine(tmp_path, make_manifest(), **{name: "another"})
    with pytest.raises(EngineError, match=rf"{name} is another, but .* in tensorrt/io\.json: files of two builds"):
        read_manifest(engine)


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe"])
def test_an_absent_or_altered_manifest_is_named(tmp_path: Path, data: bytes) -> None:
    engine = write_trt_engine(tmp_path, make_manifest())
    engine.texts[MANIFEST_FILE] = data
    with pytest.raises(EngineError, match=r"io\.json: truncated or altered"):
        TensorRtExecutor(engine)
    engine.files.pop(MANIFEST_FILE)
    with pytest.raises(EngineError, match=r"io\.json: an engine of target 'tensorrt-rtx' must have it"):
        TensorRtExecutor(engine)


def test_whatever_fails_while_opening_gives_all_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in ("cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate"):
        stand = make_stand(tmp_path / function, monkeypatch, make_manifest())
        stand.cuda.fail[function] = (1, CUresult.CUDA_ERROR_INVALID_VALUE)
        with pytest.raises(DeviceError, match=f"{function}: the CUDA driver says CUDA_ERROR_INVALID_VALUE on Fake GPU"):
            stand.open()
        assert stand.cuda.is_clean()


def test_the_cache_takes_what_is_left_beside_activations_and_buffers(stand: Stand) -> None:
    sizes = {"max_batch_size": 4, "max_num_tokens": 16, "max_rows": 8}
    executor = stand.open()
    block, useful = 512, 16 * 4
    assert executor.kv_cache_bytes(None, **sizes) == useful * block
    stand.cuda.total = 40_000
    metadata = 256 * 9  # every array is smaller than an alignment
    room = 40_000 - 5000 - metadata - 4 * 8 * 11
    assert executor.kv_cache_bytes(None, **sizes) == int(room * 0.9)
    assert executor.kv_cache_bytes(room, **sizes) == room
    with pytest.raises(
        OutOfMemoryError, match=r"kv_cache_memory is .*, but .* of the GPU's memory are free beside the"
    ):
        executor.kv_cache_bytes(room + 1, **sizes)
    with pytest.raises(OutOfMemoryError, match="at least one block of 512 bytes, got 511: raise it"):
        executor.kv_cache_bytes(511, **sizes)
    stand.cuda.total = 5000 + metadata + 352 + 560
    with pytest.raises(OutOfMemoryError, match=r"needs at least 512 B, but 560 B of the GPU's memory"):
        executor.kv_cache_bytes(None, **sizes)
    executor.close()


def test_the_cache_is_no_larger_than_the_profiles_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = tuple(
        replace(p, symbols=p.symbols | {"pages.1": replace(p.symbols["pages.1"], opt=9, max=9)})
        for p in make_manifest().profiles
    )
    stand = make_stand(tmp_path, monkeypatch, make_manifest(profiles=profiles))
    executor = stand.open()
    assert executor.kv_cache_bytes(None, max_batch_size=4, max_num_tokens=16, max_rows=8) == 9 * 512
    executor.close()


def test_what_was_sized_can_be_allocated_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = make_stand(tmp_path, monkeypatch, make_manifest(), memory=40_000)
    executor = stand.open(options=TensorRtOptions(memory_share=1.0))
    got = executor.kv_cache_bytes(None, max_batch_size=4, max_num_tokens=16, max_rows=8)
    executor.allocate([got // 512] * 2, 16, 8, 4)
    assert stand.cuda.total - stand.cuda.used() < 512
    executor.close()


def test_the_names_of_the_stand_in_are_those_of_the_driver() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    for name in (n for n in dir(FakeCuda) if n.startswith("cu")):
        assert hasattr(driver, name), name
    for kind in ("CUresult", "CUdevice_attribute", "CUstream_flags"):
        for member in getattr(FakeCuda, kind):
            assert int(getattr(getattr(driver, kind), member.name)) == member, member


def test_the_names_of_the_stand_in_are_those_of_tensorrt() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    import support.fake_tensorrt as fake

    for ours, theirs in {
        fake.FakeRuntime: trt.Runtime,
        fake.FakeEngine: trt.ICudaEngine,
        fake.FakeContext: trt.IExecutionContext,
        fake.Registry: trt.IPluginRegistry,
        fake.FakeRuntimeConfig: trt.IRuntimeConfig,
        fake.FakeRuntimeCache: trt.IRuntimeCache,
    }.items():
        for name in (n for n in vars(ours) if not n.startswith("_")):
            assert hasattr(theirs, name), f"{theirs.__name__}.{name}"
    for name in ("num_io_tensors", "num_optimization_profiles", "device_memory_size_v2"):
        assert hasattr(trt.ICudaEngine, name)
    for kind, real in {
        fake.DataType: trt.DataType,
        fake.Strategy: trt.ExecutionContextAllocationStrategy,
        fake.Specialization: trt.DynamicShapesKernelSpecializationStrategy,
        fake.Graphs: trt.CudaGraphStrategy,
    }.items():
        for member in kind:
            assert getattr(real, member.name).value == member
    assert trt.ILogger.ERROR.value == fake.ILogger.ERROR
    assert all(hasattr(trt, n) for n in ("get_plugin_registry", "__version__"))
