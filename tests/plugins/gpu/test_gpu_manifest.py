"""tensorrt/io.json: reads back what was written, and refuses everything else by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from support.made_manifest import make_manifest, make_profiles
from tensorwright.engine_format.tensorrt_manifest import IoTensor, KvLayer, Manifest, Range, resolve
from tensorwright.errors import EngineError


@pytest.mark.parametrize("kv_dtype", ["float16", "int8", "fp8"])
def test_what_is_written_reads_back_and_again_byte_for_byte(kv_dtype: str) -> None:
    manifest = make_manifest(kv_dtype=kv_dtype)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text).to_json() == text


def test_names_and_shapes_are_those_of_the_layers_and_groups() -> None:
    inputs = {t.name: t for t in make_manifest(kv_dtype="int8").inputs}
    assert inputs["seq_starts"].shape == ("seqs + 1",)
    assert inputs["block_tables.1"].shape == ("seqs", "max_blocks.1")
    assert inputs["k_pages.1"] == IoTensor("k_pages.1", "int8", ("pages.1", 1, 4, 16))
    assert inputs["v_scales.0"] == IoTensor("v_scales.0", "float32", ("pages.0", 2, 4))
    outputs = {t.name: t for t in make_manifest(kv_dtype="int8").outputs}
    assert outputs["v_scales_out.0"].alias == "v_scales.0"
    assert outputs["logits"].shape == ("rows", 11)
    assert len(outputs) == 1 + 8


def test_pages_of_fp8_are_bytes_with_scales() -> None:
    rounded, int8 = (make_manifest(kv_dtype=dtype) for dtype in ("fp8", "int8"))
    assert rounded.inputs == int8.inputs
    assert rounded.block_bytes == int8.block_bytes


def test_bytes_of_a_block_are_those_of_its_pages() -> None:
    assert make_manifest().block_bytes == (2 * 2 * 4 * 8 * 2, 2 * 1 * 4 * 16 * 2)
    assert make_manifest(kv_dtype="int8").block_bytes == (2 * 2 * 4 * (8 + 4), 2 * 1 * 4 * (16 + 4))


def test_a_shape_in_numbers() -> None:
    assert resolve(("seqs + 1",), {"seqs": 3}) == (4,)
    assert resolve(("pages.1", 2, 4), {"pages.0": 1, "pages.1": 7}) == (7, 2, 4)


def change(path: str, value: Any) -> str:
    """The JSON text of a manifest with one place altered; ... takes it away."""
    data = json.loads(make_manifest().to_json())
    *way, last = [int(p) if p.isdigit() else p for p in path.split("/")]
    place = data
    for part in way:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("format_version", 2, "format version 2"),
        ("colour", 1, "manifest: unknown keys colour"),
        ("vocab_size", ..., "manifest: vocab_size missing"),
        ("vocab_size", "11", "manifest.vocab_size must be int, got '11'"),
        ("vocab_size", True, "manifest.vocab_size must be int, got True"),
        ("layers/0/heads", 3, r"manifest.layers\[0\]: unknown keys heads"),
        ("layers/0/kv_heads", 0, r"layers\[0\] must be of positive sizes"),
        ("layers/1/group", 0, "all of 0 to 1"),
        ("inputs/0/name", "tokens", "missing are token_ids"),
        ("inputs/1/dtype", "int64", "inputs: positions must be"),
        ("inputs/1/shape", ["seqs"], "inputs: positions must be"),
        ("inputs/1/name", "extra", "'extra'"),
        ("inputs/1/name", "token_ids", "distinct names"),
        ("outputs/1/alias", None, "outputs: k_pages_out.0 must be"),
        ("outputs/0", ..., "missing are logits"),
        ("profiles", [], "profiles must be at least one"),
        ("profiles/0/symbols/tokens", ..., "profile 'prefill' must be of the symbols"),
        ("profiles/1/symbols/rows/min", 9, "profile 'decode': rows must be min <= opt <= max"),
        ("flavour", "trt", "flavour must be one of tensorrt, tensorrt-rtx"),
        ("library_version", "", "library_version must be a version"),
        ("sms", [89, 80], "sms must be rising"),
        ("kernel_sms", [], "kernel_sms must be at least one SM"),
        ("dtype", "float64", "dtype must be one of"),
        ("kv_dtype", "bfloat16", "kv_dtype must be one of float16, int8, fp8"),
        ("block_size", 0, "block_size must be a positive integer"),
        ("group_windows", [0, -1], "group_windows must be 0 or more"),
        ("plugins", ["a"], "manifest.plugins must be"),
    ],
)
def test_what_is_wrong_is_refused_by_name(path: str, value: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says) as refusal:
        Manifest.from_json(change(path, value), "a/io.json")
    assert str(refusal.value).startswith("a/io.json: ")
    assert str(refusal.value).count("build the engine again") == 1


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '"a"', "[" * 100000, '{"a": "\\ud800"}'])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(EngineError, match=r"io\.json"):
        Manifest.from_json(text)


def test_metadata_without_use_may_be_absent_but_pages_may_not() -> None:
    manifest = make_manifest()
    without = replace(manifest, inputs=tuple(t for t in manifest.inputs if t.name != "positions"))
    assert Manifest.from_json(without.to_json()) == without
    with pytest.raises(EngineError, match=r"missing are k_pages\.1"):
        replace(manifest, inputs=tuple(t for t in manifest.inputs if t.name != "k_pages.1"))


def test_the_builder_is_told_at_once() -> None:
    with pytest.raises(EngineError, match="layers"):
        make_manifest(layers=(KvLayer(0, 2, 8), KvLayer(3, 1, 16)))
    profile = make_profiles(2)[0]
    with pytest.raises(EngineError, match="tokens"):
        make_manifest(profiles=(replace(profile, symbols=profile.symbols | {"tokens": Range(2, 1, 3)}),))


def test_limits_are_the_widest_of_the_profiles() -> None:
    assert make_manifest().limit("tokens") == 32
    assert make_manifest().limit("pages.1") == 1000
