"""config.json is read as it was written, and what is wrong in it is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorwright.engine_format.checksums import FileSum, checksum_text, read_checksums
from tensorwright.engine_format.engine_config import (
    AccuracyRecord,
    EngineConfig,
    Limits,
    ModelFacts,
    QuantizationRecord,
    SourceFile,
    SourceRecord,
    is_engine,
)
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.errors import EngineError

PATH = Path("engine/config.json")
CONFIG = EngineConfig(
    tensorwright_version="0.1.0",
    target="cpu",
    model=ModelFacts(model_type="llama", vocab_size=257, layers=2, eos_token_ids=[256]),
    dtype="float32",
    limits=Limits(max_seq_len=128, block_size=32, kv_block_bytes=2048),
    build_options={"quantize": "int4", "kv_cache_dtype": "int8", "max_seq_len": None},
    passes={"fuse_qkv": 2},
    accuracy=AccuracyRecord(kind="quick", tokens=64, kl_divergence=0.5, output_errors={"mlp.up": [0.1, None]}),
    quantization=QuantizationRecord(parse_spec("int4"), True, {"all": 4.5, "layers": None}, {"lm_head": [0.1]}),
    source=SourceRecord("0", {"model.safetensors": SourceFile(3, "f" * 32)}, "gptq 4 bits g128"),
    sizes={"cpu/weights.bin": 64},
)
PLAIN = replace(
    CONFIG, accuracy=None, quantization=None, build_options={}, model=ModelFacts(vocab_size=257, eos_token_ids=[])
)


RECURRENT = replace(PLAIN, limits=Limits(128, 32, 0, state_bytes=64))
"""A model without attention."""


@pytest.mark.parametrize("config", [CONFIG, PLAIN, RECURRENT])
def test_it_is_read_as_it_was_written(config: EngineConfig) -> None:
    assert EngineConfig.from_dict(json.loads(config.to_json()), PATH) == config


def test_absent_facts_are_not_written_and_numbers_that_are_not_finite_are_null() -> None:
    values = CONFIG.to_dict()
    assert list(values)[:4] == ["format", "format_version", "tensorwright_version", "target"]
    assert values["model"] == {
        "model_type": "llama", "vocab_size": 257, "layers": 2, "bos_token_id": None, "eos_token_ids": [256],
    }  # fmt: skip
    assert values["quantization"]["spec"] == str(parse_spec("int4"))
    assert "measured_on" not in values["accuracy"]
    assert "state_bytes" not in values["limits"]
    assert values["accuracy"]["perplexity_engine"] is None


def test_its_formats_have_the_name_that_was_asked_for_and_the_whole_one() -> None:
    assert CONFIG.quantize_specs == {"int4": parse_spec("int4"), str(parse_spec("int4")): parse_spec("int4")}
    assert PLAIN.quantize_specs == {}
    assert (CONFIG.kv_cache_dtype, PLAIN.kv_cache_dtype) == ("int8", "auto")


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("model", {"vocab_size": True}, "model.vocab_size must be a positive integer, got True"),
        ("model", {"layers": "2"}, "model.layers must be .*int.*, got '2'"),
        ("model", {"surprise": 1}, "model: unknown keys surprise"),
        ("model", {"eos_token_ids": ["</s>"]}, r"end-of-sequence tokens must be token ids, got \['</s>'\]"),
        ("limits", {"block_size": 0}, "limits.block_size must be a positive integer"),
        ("limits", {"kv_block_bytes": 0}, "limits.kv_block_bytes must be a positive integer"),
        ("limits", {"state_bytes": 0}, "limits.state_bytes must be absent or positive, got 0"),
        ("limits", {"state_bytes": "64"}, "limits.state_bytes must be absent or positive, got '64'"),
        ("build_options", {"kv_cache_dtype": 8}, "build_options.kv_cache_dtype must be str"),
        ("build_options", {"quantize": "int5"}, "a weight format must be"),
        ("passes", {"fuse_qkv": "2"}, "passes.fuse_qkv must be int, got '2'"),
        ("accuracy", {"kl_divergence": "0"}, "accuracy.kl_divergence must be .*float.*, got '0'"),
        ("quantization", {"tied": 1}, "its record of quantization is not as this version writes it"),
        ("quantization", {"spec": "int5"}, "its record of quantization is not as this version writes it"),
        ("source", {"files": []}, r"source.files must be dict, got \[\]"),
        ("sizes", {"cpu/plan.bin": None}, "sizes.cpu/plan.bin must be int"),
    ],
)
def test_a_wrong_field_is_named(section: str, changes: dict[str, Any], message: str) -> None:
    values = CONFIG.to_dict()
    values[section] = {**values[section], **changes}
    with pytest.raises(EngineError, match=message):
        EngineConfig.from_dict(values, PATH)


def test_what_claims_to_be_an_engine(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    assert not is_engine(tmp_path)
    config.write_text(CONFIG.to_json())
    assert is_engine(tmp_path)
    for text in ('{"model_type": "llama"}', "[]", "{"):
        config.write_text(text)
        assert not is_engine(tmp_path)
    (tmp_path / "checksums.txt").write_text("")
    assert is_engine(tmp_path)
    config.write_text('{"model_type": "llama"}')
    assert not is_engine(tmp_path)


def test_checksums_are_read_as_they_were_written(tmp_path: Path) -> None:
    sums = {"b c.txt": FileSum("2" * 32, 2), "a/b": FileSum("1" * 32, 1 << 40)}
    (tmp_path / "checksums.txt").write_text(checksum_text(sums))
    assert read_checksums(tmp_path) == sums
