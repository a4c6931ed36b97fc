"""The cache of engines built from model directories: what its key covers, one build at a time, nothing half built."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from pathlib import Path

import pytest

from support.fake_runtime import FakeEngine, fake_module, write_engine
from tensorwright.errors import BuildError, CheckpointError, MissingDependencyError
from tensorwright.runtime import llm, model_cache, native
from tensorwright.runtime.engine_cache import cache_root
from tensorwright.runtime.model_cache import cache_key, engine_for_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tensorwright" / "engines"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    (path / "model.safetensors").write_bytes(bytes(100))
    return path


def test_key_covers_files_dtype_and_version(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache_key(model, "auto"), cache_key(model, "float32")}
    os.utime(model / "config.json", (1, 1))
    keys.add(cache_key(model, "auto"))
    (model / "model.safetensors").write_bytes(bytes(101))
    keys.add(cache_key(model, "auto"))
    (model / "extra.json").write_text("{}")
    keys.add(cache_key(model, "auto"))
    monkeypatch.setattr(model_cache.tensorwright, "__version__", "0.0.0")
    keys.add(cache_key(model, "auto"))
    assert len(keys) == 6
    assert cache_key(model, "auto") == cache_key(model, "auto")


def test_root_follows_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == Path.home() / ".cache" / "tensorwright" / "engines"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "tensorwright" / "engines"


def test_built_once_then_found(model: Path, cache: Path) -> None:
    builds: list[str] = []

    def build(source: Path, out: Path, dtype: str) -> None:
        assert source == model
        builds.append(dtype)
        write_engine(out)

    first = engine_for_model(model, "auto", build).path
    assert first.parent == cache
    assert (first / "config.json").exists()
    assert engine_for_model(model, "auto", build).path == first
    assert engine_for_model(model, "float32", build).path != first
    assert builds == ["auto", "float32"]


def test_a_failed_build_leaves_nothing(model: Path, cache: Path) -> None:
    def build(source: Path, out: Path, dtype: str) -> None:
        out.mkdir()
        raise BuildError("disk full")

    with pytest.raises(BuildError, match="disk full"):
        engine_for_model(model, "auto", build)
    assert [path.name for path in cache.iterdir()] == [f"{cache_key(model, 'auto')}.lock"]


def test_what_a_killed_build_left_is_removed(model: Path, cache: Path) -> None:
    left = cache / f"{cache_key(model, 'auto')}.partial"
    left.mkdir(parents=True)
    (left / "junk").write_text("x")
    engine = engine_for_model(model, "auto", lambda source, out, dtype: write_engine(out) and None).path
    assert not (engine / "junk").exists()
    assert not left.exists()


def test_others_wait_for_the_one_that_builds(model: Path) -> None:
    builds = []

    def build(source: Path, out: Path, dtype: str) -> None:
        builds.append(out)
        time.sleep(0.2)
        write_engine(out)

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(engine_for_model(model, "auto", build).path)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(builds) == 1
    assert len(found) == 4
    assert len(set(found)) == 1


def test_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty directory"):
        engine_for_model(tmp_path / "empty", "auto")


def test_without_the_build_extra_the_error_says_what_to_install(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"torch and transformers.*pip install 'tensorwright\[build\]'"):
        engine_for_model(model, "auto")


def test_llm_takes_a_model_directory(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    monkeypatch.setattr(model_cache, "_import_builder", lambda: lambda source, out, dtype: write_engine(out) and None)
    with llm.LLM(model, kv_cache_memory="1MiB") as first:
        assert first.generate("hi").finished
        built = first.engine.path
    with llm.LLM(str(model), kv_cache_memory="1MiB") as second:
        assert second.engine.path == built
