"""The cache of engines built from model directories: what its key covers, one build at a time, nothing half built."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from pathlib import Path

import pytest

from support.fake_runtime import FakeEngine, engine_config, fake_module, write_engine
from support.waiting import PATIENCE
from tensorwright.builder.options import BuildOptions
from tensorwright.errors import BuildError, CheckpointError, InvalidOptionError, MissingDependencyError
from tensorwright.options.text_file import NamedText
from tensorwright.runtime.api import llm, model_cache, open_model
from tensorwright.runtime.api.engine_cache import cache_root
from tensorwright.runtime.api.model_cache import BuildChoices, cache_key, engine_for_model
from tensorwright.runtime.engine import native


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


def test_key_covers_files_options_and_version(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache_key(model, BuildChoices()), cache_key(model, BuildChoices("float32"))}
    assert cache_key(model, BuildChoices("fp32")) in keys
    keys |= {cache_key(model, BuildChoices(quantize=spec)) for spec in ("int4", "int8")}
    os.utime(model / "config.json", (1, 1))
    keys.add(cache_key(model, BuildChoices()))
    (model / "model.safetensors").write_bytes(bytes(101))
    keys.add(cache_key(model, BuildChoices()))
    (model / "extra.json").write_text("{}")
    keys.add(cache_key(model, BuildChoices()))
    monkeypatch.setattr(model_cache.tensorwright, "__version__", "0.0.0")
    keys.add(cache_key(model, BuildChoices()))
    assert len(keys) == 8
    assert cache_key(model, BuildChoices()) == cache_key(model, BuildChoices())


def test_the_key_of_a_gguf_file_covers_its_parts_alone(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(b"1")
    keys = {cache_key(first, BuildChoices())}
    second.write_bytes(b"2")
    keys.add(cache_key(first, BuildChoices()))
    os.utime(second, (1, 1))
    keys.add(cache_key(first, BuildChoices()))
    (tmp_path / "other.gguf").write_bytes(b"3")
    assert cache_key(first, BuildChoices()) in keys
    assert len(keys) == 3


def test_each_spelling_of_the_same_formats_is_one_engine(model: Path) -> None:
    same = ("int4:g32", "int4:g32,embedding=int4", "int4, lm_head=int4:g32,embedding=int4:g32")
    builds: list[str | None] = []

    def build(source: Path, out: Path, options: BuildChoices) -> None:
        builds.append(options.quantize)
        write_engine(out)

    for formats in ("int4", *same, "int4:g64", "int4,lm_head=int8"):
        engine_for_model(model, BuildChoices(quantize=formats), build)
    assert builds == ["int4", "int4:g64", "int4,lm_head=int8"]


def test_a_file_of_formats_is_read_for_the_key(model: Path, tmp_path: Path) -> None:
    """The engine belongs to what the file says, not to its name, and is built with what the key was made of."""
    file, builds = tmp_path / "formats.json", []

    def build(source: Path, out: Path, options: BuildChoices) -> None:
        builds.append((options.quantize, options.quantize_config))
        write_engine(out)

    by_file = BuildChoices(quantize="int4", quantize_config=str(file))
    keys = []
    for table in ('{"a.*": "int8"}', '{"a.*": "none"}'):
        file.write_text(table)
        keys.append(cache_key(model, by_file))
        open_model.engine_for_model(model, by_file.without_files(), build)
    assert keys[0] == cache_key(model, BuildChoices(quantize="int4,a.*=int8")) != keys[1]
    assert builds == [("int4,a.*=int8", None), ("int4,a.*=none", None)]
    file.write_text("{")
    with pytest.raises(InvalidOptionError, match=r"quantize_config: .*formats\.json: is not JSON"):
        open_model.open_model(model, by_file)
    text = tmp_path / "text.txt"
    calibrated = BuildChoices(quantize="int4", calibrate="gptq", calibration_text=str(text))
    with pytest.raises(InvalidOptionError, match=r"calibration_text: .*text\.txt is no file"):
        cache_key(model, calibrated)
    keys = [cache_key(model, BuildChoices(quantize="int4", calibrate=way)) for way in ("none", "gptq", "awq")]
    for content in ("one", "two", "one"):
        text.write_text(content)
        keys.append(cache_key(model, calibrated))
    assert len({*keys}) == 5
    assert str(calibrated) == "auto, int4, calibrated with gptq"
    many = "int4," + ",".join(f"a.{i}=int8" for i in range(9))
    assert str(BuildChoices(quantize=many)).endswith("lm_head=int4:g32, and 9 rules")


def test_root_follows_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == Path.home() / ".cache" / "tensorwright" / "engines"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "tensorwright" / "engines"


def test_built_once_then_found(model: Path, cache: Path) -> None:
    builds: list[str] = []

    def build(source: Path, out: Path, options: BuildChoices) -> None:
        assert source == model
        builds.append(str(options))
        write_engine(out)

    first = engine_for_model(model, BuildChoices(), build).path
    assert first.parent == cache
    assert (first / "config.json").exists()
    assert engine_for_model(model, BuildChoices(), build).path == first
    assert engine_for_model(model, BuildChoices("float32"), build).path != first
    assert builds == ["auto", "float32"]


def test_a_failed_build_leaves_nothing(model: Path, cache: Path) -> None:
    def build(source: Path, out: Path, options: BuildChoices) -> None:
        out.mkdir()
        raise BuildError("disk full")

    with pytest.raises(BuildError, match="disk full"):
        engine_for_model(model, BuildChoices(), build)
    assert [path.name for path in cache.iterdir()] == [f"{cache_key(model, BuildChoices())}.lock"]


def test_what_a_killed_build_left_is_removed(model: Path, cache: Path) -> None:
    left = cache / f"{cache_key(model, BuildChoices())}.partial"
    left.mkdir(parents=True)
    (left / "junk").write_text("x")
    engine = engine_for_model(model, BuildChoices(), lambda source, out, options: write_engine(out) and None).path
    assert not (engine / "junk").exists()
    assert not left.exists()


def test_others_wait_for_the_one_that_builds(model: Path) -> None:
    builds = []

    def build(source: Path, out: Path, options: BuildChoices) -> None:
        builds.append(out)
        time.sleep(0.2)
        write_engine(out)

    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(engine_for_model(model, BuildChoices(), build).path))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(builds) == 1
    assert len(found) == 4
    assert len(set(found)) == 1


def test_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty directory"):
        engine_for_model(tmp_path / "empty", BuildChoices())


def test_without_the_build_extra_the_error_says_what_to_install(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"torch and transformers.*pip install -e '.\[build\]'"):
        engine_for_model(model, BuildChoices())


@pytest.mark.parametrize("name", [None, "m.gguf", "folder"])
def test_llm_takes_a_model_directory(
    model: Path, tmp_path: Path, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name is not None:  # a GGUF file, or a directory that holds one
        model = tmp_path / name
        file = model if name.endswith(".gguf") else model / "m.gguf"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"GGUF")
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    monkeypatch.setattr(model_cache, "_import_builder", lambda: lambda source, out, options: write_engine(out) and None)
    with llm.LLM(model, kv_cache_memory="1MiB") as first:
        assert first.generate("hi").finished
        built = first.engine.path
    with llm.LLM(str(model), kv_cache_memory="1MiB") as second:
        assert second.engine.path == built


def test_llm_hands_the_formats_of_weights_to_the_build(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    asked: list[BuildChoices] = []

    def build(source: Path, out: Path, options: BuildChoices) -> None:
        asked.append(options)
        write_engine(out)

    monkeypatch.setattr(model_cache, "_import_builder", lambda: build)
    for quantize in ("int4", "int4", None, "w8a8,embedding=none"):
        llm.LLM(model, kv_cache_memory="1MiB", quantize=quantize).shutdown()
    assert [choices.quantize for choices in asked] == ["int4", None, "w8a8,embedding=none"]


def test_the_type_of_the_kv_cache_is_handed_on_and_told_apart(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)

    def build(source: Path, out: Path, options: BuildChoices) -> None:
        write_engine(out, engine_config(build_options={"kv_cache_dtype": options.kv_cache_dtype}))

    monkeypatch.setattr(model_cache, "_import_builder", lambda: build)
    with llm.LLM(model, kv_cache_memory="1MiB", kv_cache_dtype="int8") as rounded:
        assert rounded.engine.config.kv_cache_dtype == "int8"
        path = rounded.engine.path
    with llm.LLM(model, kv_cache_memory="1MiB") as plain:
        assert plain.engine.config.kv_cache_dtype == "auto"
        other = plain.engine.path
    llm.LLM(path, kv_cache_memory="1MiB", kv_cache_dtype="int8").shutdown()
    with pytest.raises(InvalidOptionError, match="is an engine with a KV cache of 'auto'; build another one"):
        llm.LLM(other, kv_cache_dtype="int8")
    with pytest.raises(InvalidOptionError, match="kv_cache_dtype must be one of auto, int8, int4, fp8, got 'fp16'"):
        llm.LLM(model, kv_cache_dtype="fp16")


@pytest.mark.parametrize("quantize", ["", " ", 4, ["int4"]])
def test_llm_refuses_what_names_no_format(model: Path, quantize: object) -> None:
    with pytest.raises(InvalidOptionError, match="quantize must be the names of formats"):
        llm.LLM(model, quantize=quantize)
    with pytest.raises(InvalidOptionError, match="quantize must be the names of formats"):
        BuildOptions(quantize=quantize)


def test_a_model_directory_is_offered_the_formats_of_target_cpu(model: Path, tmp_path: Path) -> None:
    of_cpu = r"must be int4, .*, uint2 \(.*\), mxfp4, w4a8, w8a8 or fp8, not 'int5'"
    with pytest.raises(InvalidOptionError, match=of_cpu):
        llm.LLM(model, quantize="int5")
    with pytest.raises(InvalidOptionError, match=of_cpu):
        cache_key(model, BuildChoices(quantize="int5"))
    with pytest.raises(InvalidOptionError, match=r"w8a8 or fp8, not 'int5'"):  # before the engine is looked for
        llm.LLM(tmp_path / "no such engine", quantize="int5")
    assert not cache_root().exists()


def test_an_engine_of_other_formats_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "create_engine", lambda *args: FakeEngine())
    monkeypatch.setattr(native, "load_module", fake_module)
    spec = "int4:g32,embedding=int4:g32,lm_head=int4:g32"
    record = {"spec": spec, "tied": True, "bits_per_weight": {"all": 4.5}, "weight_errors": {}}
    config = engine_config(quantization=record, build_options={"quantize": "int4"})
    quantized = write_engine(tmp_path / "a", config)
    plain = write_engine(tmp_path / "b")
    for asked in (None, "int4", "int4:g32", spec):
        llm.LLM(quantized, kv_cache_memory="1MiB", quantize=asked).shutdown()
    with pytest.raises(InvalidOptionError, match=r"quantize='int8': .* is an engine built as 'int4' or 'int4:g32,"):
        llm.LLM(quantized, quantize="int8")
    with pytest.raises(InvalidOptionError, match="is an engine without quantized weights; build another one"):
        llm.LLM(plain, quantize="int4")
    (tmp_path / "text.txt").write_text("one")
    seen = NamedText("text.txt", "one").as_recorded
    chosen = {"method": "gptq", "text": seen, "tokens": 64, "rounded_to_nearest": []}
    config["quantization"] |= {"calibration": chosen}
    calibrated = write_engine(tmp_path / "c", config)
    text = tmp_path / "text.txt"
    for options in ({}, {"calibrate": "gptq"}, {"calibrate": "gptq", "calibration_text": text}):
        llm.LLM(calibrated, kv_cache_memory="1MiB", **options).shutdown()
    for engine, found in ((calibrated, "gptq"), (quantized, "none")):
        with pytest.raises(
            InvalidOptionError, match=f"calibrate='awq': .* is an engine with calibrate='{found}'; build"
        ):
            llm.LLM(engine, calibrate="awq")
    text.write_text("two")
    with pytest.raises(InvalidOptionError, match="is an engine that saw no such text; build another one"):
        llm.LLM(calibrated, calibration_text=text)
