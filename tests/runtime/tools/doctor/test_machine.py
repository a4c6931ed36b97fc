"""What `tensorwright doctor` says of a machine: processor, kernels, driver and GPUs, or why there are none."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tensorwright.runtime.tools.doctor.machine import examine_machine, examine_nvidia

CPUINFO = "processor : 0\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu avx2 fma avx512f\n"


def test_the_processor_as_proc_has_it(tmp_path):
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    facts = examine_machine(tmp_path)
    assert facts["processor"] == "Some CPU @ 3 GHz"
    assert facts["instruction_sets"] == ["avx2", "fma", "avx512f"]
    assert facts["kernels"]["taken"]["matmul float32"].startswith("matmul_f32_")


def test_a_processor_of_arm_has_numbers_for_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    lines = "Features\t: fp asimd asimddp i8mm sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    (tmp_path / "cpuinfo").write_text(lines)
    facts = examine_machine(tmp_path)
    assert facts["processor"] == "aarch64 0x41 0xd40"
    assert facts["instruction_sets"] == ["asimd", "asimddp", "i8mm"]


def test_without_proc_there_is_no_guess(tmp_path):
    assert examine_machine(tmp_path)["instruction_sets"] == []


class Driver(ModuleType):
    """cuda.bindings.driver with one GPU."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor"
    )
    start = 0

    def cuInit(self, flags):
        return (self.start,)

    def cuDeviceGetCount(self):
        return 0, 1

    def cuDeviceGet(self, ordinal):
        return 0, ordinal

    def cuDeviceGetAttribute(self, attribute, device):
        return 0, {"major": 8, "minor": 9}[attribute]

    def cuDeviceGetName(self, size, device):
        return 0, b"A GPU\0\0\0"

    def cuDeviceTotalMem(self, device):
        return 0, 24 << 30

    def cuDriverGetVersion(self):
        return 0, 13010


@pytest.fixture
def driver(monkeypatch):
    """Its cuInit and its import may be changed."""
    module = Driver("cuda.bindings.driver")
    bindings = ModuleType("cuda.bindings")
    bindings.driver = module
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", module)
    return module


def test_gpus_and_versions(driver, tmp_path):
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  x\n")
    assert examine_nvidia(tmp_path) == {
        "driver": "580.65.06",
        "cuda": "13.1",
        "gpus": [{"name": "A GPU", "sm": 89, "memory_bytes": 24 << 30}],
        "error": None,
    }


def test_a_driver_that_does_not_start(driver, tmp_path):
    driver.start = SimpleNamespace(name="CUDA_ERROR_NO_DEVICE")
    facts = examine_nvidia(tmp_path)
    assert facts["error"] == "the NVIDIA driver does not start: cuInit says CUDA_ERROR_NO_DEVICE"
    assert facts["gpus"] == []


def test_without_a_library_there_is_no_driver(driver, monkeypatch, tmp_path):
    def absent(flags):
        raise RuntimeError("libcuda.so not found")

    monkeypatch.setattr(driver, "cuInit", absent, raising=False)
    assert "no NVIDIA driver: libcuda.so.1 is not found" in examine_nvidia(tmp_path)["error"]


def test_without_the_bindings_it_says_what_is_absent(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "the package cuda-bindings is absent" in examine_nvidia(tmp_path)["error"]
