"""TensorRT engines whose plan only the stand-in reads, and executors over the stand-ins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.fake_gpu import FakeCuda
from support.fake_runtime import engine_config
from support.fake_tensorrt import FakePlugins, FakeTensorRt, Network
from support.paged_network import PagedNetwork
from tensorwright.engine_format.checksums import FileSum
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.engine_format.file_names import CONFIG
from tensorwright.engine_format.tensorrt_manifest import ENGINE_FILE, MANIFEST_FILE, Manifest
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.engine.tensorrt import library
from tensorwright.runtime.engine.tensorrt.executor import TensorRtExecutor

PLAN = b"plan"


def write_trt_engine(path: Path, manifest: Manifest, **changes: Any) -> EngineDir:
    """Writes the two files of the target. config.json is in memory alone; changes: fields of it."""
    (path / "tensorrt").mkdir(parents=True, exist_ok=True)
    (path / ENGINE_FILE).write_bytes(PLAN)
    (path / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    limits = {
        "max_seq_len": manifest.max_seq_len,
        "block_size": manifest.block_size,
        "kv_block_bytes": sum(manifest.block_bytes),
    }
    model = {"vocab_size": manifest.vocab_size}
    values = engine_config(target=manifest.flavour, dtype=manifest.dtype, model=model, limits=limits)
    config = replace(EngineConfig.from_dict(values, path / CONFIG), **changes)
    files = {name: FileSum("", 0) for name in (ENGINE_FILE, MANIFEST_FILE)}
    texts = {MANIFEST_FILE: manifest.to_json().encode()}
    return EngineDir(path, config, files, texts, {})


@dataclass
class Stand:
    """An executor and the stand-ins below it."""

    manifest: Manifest
    engine: EngineDir
    cuda: FakeCuda
    trt: FakeTensorRt

    def open(self, executor: type = TensorRtExecutor, **options: Any) -> Any:
        return executor(self.engine, bindings=self.trt, driver=self.cuda, **options)


def make_stand(path: Path, monkeypatch: Any, manifest: Manifest, network: Network | None = None, **cuda: Any) -> Stand:
    fake = FakeCuda(**cuda)
    trt = FakeTensorRt(fake, manifest, network or PagedNetwork(manifest), PLAN)
    monkeypatch.setattr(library, "EnginePlugins", FakePlugins)
    return Stand(manifest, write_trt_engine(path, manifest), fake, trt)
