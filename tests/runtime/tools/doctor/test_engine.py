"""`tensorwright doctor ENGINE`: whether an engine can run here, every reason why not, and what a script reads of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.fake_gpu import FakeCuda
from support.fake_runtime import engine_config, write_engine
from support.fake_tensorrt import FakeTensorRt
from support.made_manifest import make_manifest
from support.onnx_engine import OnnxModel, seal, write_onnx_engine
from support.paged_network import PagedNetwork
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, MANIFEST_FILE, Manifest
from tensorwright.installing import install
from tensorwright.runtime.commands.cli import cli
from tensorwright.runtime.engine.tensorrt import cuda, library


def ask(engine: Path, *, code: int) -> dict[str, Any]:
    """The engine's part of `doctor --json`, and the exit code that goes with it."""
    ran = CliRunner().invoke(cli, ["doctor", str(engine), "--json"], catch_exceptions=False)
    told = json.loads(ran.stdout)
    assert set(told) == {"machine", "nvidia", "packages", "engine"}
    assert set(told["engine"]) == {"path", "target", "runs", "facts", "problems", "warnings"}
    assert ran.exit_code == code
    assert told["engine"]["runs"] == (code == 0) == (told["engine"]["problems"] == [])
    return told["engine"]


def reasons(engine: Path) -> list[str]:
    return [f"{problem['type']}: {problem['message']}" for problem in ask(engine, code=1)["problems"]]


def test_without_an_engine_it_only_tells_and_ends_with_0() -> None:
    ran = CliRunner().invoke(cli, ["doctor", "--json"], catch_exceptions=False)
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["engine"] is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no such engine directory; build one with: build-engine MODEL"),
        (Path.mkdir, "not an engine, it has no config.json"),
        (lambda path: path.write_text("x"), "an engine is a directory, this is a file"),
        (
            lambda path: write_engine(path, engine_config(format_version=9)),
            "format version 9, this tensorwright reads 1",
        ),
        (lambda path: write_engine(path, engine_config(target="abacus")), "built for target 'abacus'"),
    ],
)
def test_what_is_no_engine_of_this_version_is_a_problem_and_no_failure(tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "engine")
    (reason,) = reasons(tmp_path / "engine")
    assert reason.startswith("EngineError: ")
    assert says in reason


def test_an_engine_of_target_cpu_runs(pico_engine: Path) -> None:
    told = ask(pico_engine, code=0)
    assert told["target"] == "cpu"
    assert {"dtype", "max_seq_len", "built_by"} <= set(told["facts"])
    assert told["warnings"] == []


def test_an_instruction_set_that_this_processor_lacks(pico_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", "abacus")
    assert reasons(pico_engine)[0].startswith("IsaError: TENSORWRIGHT_ISA")


@pytest.fixture
def onnx_engine(tmp_path: Path) -> Path:
    return write_onnx_engine(tmp_path / "onnx engine", OnnxModel())


def test_an_engine_of_target_onnx_runs(onnx_engine: Path) -> None:
    assert ask(onnx_engine, code=0)["target"] == "onnx"
    shown = CliRunner().invoke(cli, ["doctor", str(onnx_engine)], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "runs here" in shown.stdout


def test_an_engine_without_tokenizer_runs_with_a_warning(onnx_engine: Path) -> None:
    (onnx_engine / "tokenizer.json").unlink()
    seal(onnx_engine)
    [warning] = ask(onnx_engine, code=0)["warnings"]
    assert warning.startswith("no tokenizer: ")
    shown = CliRunner().invoke(cli, ["doctor", str(onnx_engine)], catch_exceptions=False)
    assert "tensorwright serve refuses it" in " ".join(shown.stdout.split())


def test_an_absent_onnxruntime_is_named_with_its_extra(onnx_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (reason,) = reasons(onnx_engine)
    assert reason.startswith("MissingDependencyError: ")
    assert install("onnx") in reason
    shown = CliRunner().invoke(cli, ["doctor", str(onnx_engine)], catch_exceptions=False)
    assert shown.exit_code == 1
    assert "cannot run here" in shown.stdout


def test_a_provider_that_there_is_not(onnx_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ONNX_PROVIDER", "abacus")
    (reason,) = reasons(onnx_engine)
    assert "must be one of cpu, cuda, got 'abacus'" in reason


def test_an_altered_model_is_found_by_its_checksum_and_by_the_library(onnx_engine: Path) -> None:
    model = onnx_engine / "onnx/model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"?")
    (reason,) = reasons(onnx_engine)
    assert "model.onnx: altered, its checksum does not match" in reason
    model.write_bytes(b"no model")
    seal(onnx_engine)
    (reason,) = reasons(onnx_engine)
    assert "does not load it" in reason


def write_trt(path: Path, manifest: Manifest, **config: Any) -> Path:
    """A whole engine directory whose plan only the stand-in reads."""
    limits = {
        "max_seq_len": manifest.max_seq_len,
        "block_size": manifest.block_size,
        "kv_block_bytes": sum(manifest.block_bytes),
    }
    model = engine_config()["model"] | {"vocab_size": manifest.vocab_size, "eos_token_ids": [], "bos_token_id": None}
    about = {"target": manifest.flavour, "dtype": manifest.dtype, "limits": limits, "model": model}
    files = {MANIFEST_FILE: manifest.to_json(), ENGINE_FILE: "plan"}
    return write_engine(path, engine_config(**about | config), more=files)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRt:
    """A machine with TensorRT for RTX 1.7.1.116, a driver, and a GPU of SM 80."""
    manifest = make_manifest()
    trt = FakeTensorRt(FakeCuda(sm=80), manifest, PagedNetwork(manifest))
    monkeypatch.setattr(library, "load_bindings", lambda flavour: trt)
    monkeypatch.setattr(cuda, "load_driver", lambda extra: trt.cuda)
    return trt


def test_a_tensorrt_engine_for_this_gpu_runs(tmp_path: Path, gpu: FakeTensorRt) -> None:
    told = ask(write_trt(tmp_path / "rtx", make_manifest()), code=0)
    assert told["target"] == "tensorrt-rtx"
    assert told["facts"]["library"] == "tensorrt_rtx 1.7.1.116"
    assert told["facts"]["sm"] == told["facts"]["kernels_for_sm"] == [80, 89]
    assert (told["facts"]["max_batch_size"], told["facts"]["max_num_tokens"]) == (8, 32)
    assert gpu.cuda.is_clean()


@pytest.mark.parametrize(("sms", "says"), [((80, 89), "[80, 89]"), ((), "the library's defaults")])
def test_inspect_shows_the_same_facts(tmp_path: Path, gpu: FakeTensorRt, sms: tuple[int, ...], says: str) -> None:
    engine = write_trt(tmp_path / "rtx", make_manifest(sms=sms))
    told = CliRunner().invoke(cli, ["inspect", str(engine), "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)["target_facts"].items() <= ask(engine, code=0)["facts"].items()
    shown = CliRunner().invoke(cli, ["inspect", str(engine)], catch_exceptions=False)
    assert f"sm {says}" in " ".join(shown.stdout.split())


def test_every_reason_is_told_at_once(tmp_path: Path, gpu: FakeTensorRt) -> None:
    gpu.__version__, gpu.cuda.sm = "1.8.0.5", 86
    version, device = reasons(write_trt(tmp_path / "rtx", make_manifest()))
    assert "built with tensorrt_rtx 1.7.1.116, and 1.8.0.5 is installed: install version 1.7.1" in version
    assert "is of SM 86, and the engine was built for SM 80, 89: build it again with --sm 86" in device
    assert gpu.cuda.is_clean()


def test_a_gpu_below_the_default_engines(tmp_path: Path, gpu: FakeTensorRt) -> None:
    gpu.cuda.sm = 75
    engine = write_trt(tmp_path / "rtx", make_manifest(sms=()))
    assert ask(engine, code=1)["facts"]["sm"] == []
    shown = CliRunner().invoke(cli, ["doctor", str(engine)], catch_exceptions=False)
    assert "sm by the library's choice" in " ".join(shown.stdout.split())
    (reason,) = reasons(engine)
    assert "runs on SM 80 and later: build it again with --sm 75" in reason


def test_no_driver_is_one_sentence(tmp_path: Path, gpu: FakeTensorRt) -> None:
    gpu.cuda.devices = 0
    (reason,) = reasons(write_trt(tmp_path / "rtx", make_manifest()))
    assert "there is no NVIDIA driver here (cuInit says CUDA_ERROR_NO_DEVICE)" in reason


def test_absent_packages_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt_rtx", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    bindings, driver = reasons(write_trt(tmp_path / "rtx", make_manifest()))
    assert "needs the package tensorrt_rtx" in bindings
    assert "need the package cuda-bindings" in driver
    assert all(install("tensorrt-rtx") in reason for reason in (bindings, driver))


@pytest.mark.parametrize("data", [b"[]", b"\xff\xfe", b"{"])
def test_a_manifest_that_cannot_be_read_is_the_only_problem(tmp_path: Path, gpu: FakeTensorRt, data: bytes) -> None:
    engine = write_trt(tmp_path / "rtx", make_manifest())
    (engine / MANIFEST_FILE).write_bytes(data)
    assert f"{MANIFEST_FILE}: truncated, it has {len(data)} bytes" in reasons(engine)[0]
    seal_all(engine)
    (reason,) = reasons(engine)
    assert reason.startswith("EngineError: ")
    assert MANIFEST_FILE in reason
    assert "build the engine again" in reason


def test_files_of_two_builds(tmp_path: Path, gpu: FakeTensorRt) -> None:
    (reason,) = reasons(write_trt(tmp_path / "rtx", make_manifest(), dtype="bfloat16"))
    assert "dtype is bfloat16, but float16 in tensorrt/io.json: files of two builds are mixed" in reason


def seal_all(engine: Path) -> None:
    from support.fake_runtime import write_checksums

    names = [str(path.relative_to(engine)) for path in engine.rglob("*") if path.is_file()]
    write_checksums(engine, [name for name in names if name != "checksums.txt"])


def test_sampling_defaults_that_cannot_be(tmp_path: Path) -> None:
    write_engine(tmp_path / "engine", more={"generation_config.json": '{"top_p": 2}'})
    (reason,) = [each for each in reasons(tmp_path / "engine") if "generation_config.json" in each]
    assert "top_p must be above 0 and at most 1, got 2" in reason
    assert "generation_config='neutral'" in reason
