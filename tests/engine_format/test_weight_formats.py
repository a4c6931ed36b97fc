"""The grammar of `--quantize`: what it reads, how it spells it out, and what each target refuses."""

from __future__ import annotations

import itertools

import pytest

from tensorwright.engine_format.targets import TARGETS
from tensorwright.engine_format.weight_formats import (
    FORMATS,
    UNQUANTIZED,
    QuantizeSpec,
    WeightFormat,
    parse_format,
    parse_spec,
)
from tensorwright.errors import InvalidOptionError

NAMES = (
    "int4:g32", "int4:g64", "int4:g128", "int8:g32", "int8:g64", "int8:g128",
    "uint4:g32", "uint8:g128", "int4:g64:fp16", "uint4:g128:fp16", "mxfp4", "w8a8", "fp8",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_format_is_written_as_it_is_read(name: str) -> None:
    assert str(parse_format(name)) == name
    assert parse_format(name).family == name.partition(":")[0]


def test_formats_differ_in_what_they_store() -> None:
    assert parse_format("int4") == WeightFormat(4, 32) == parse_format("int4:g32")
    assert parse_format("w8a8") == WeightFormat(8, 0)
    assert [parse_format(name).dtype for name in ("int4", "int8", "mxfp4", "w8a8", "fp8")] == [
        "int4", "int8", "mxfp4", "int8", "float8_e4m3fn",
    ]  # fmt: skip
    assert len({parse_format(name) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "int5", "int4:", "int4:g16", "int4:32", "w8a8:g32", "fp8:g32", "mxfp4:g32", "", "INT4", "none", "uint4:",
        "int4:fp16:g32",
    ],
)  # fmt: skip
def test_unknown_formats_are_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="weight format"):
        parse_format(text)


def test_specs_are_spelled_out() -> None:
    assert str(parse_spec("int4")) == "int4:g32,embedding=int4:g32,lm_head=int4:g32"
    assert str(parse_spec("w8a8, lm_head=int8:g128,embedding=none")) == "w8a8,embedding=none,lm_head=int8:g128"
    assert parse_spec("none") == UNQUANTIZED == QuantizeSpec(None, None, None)
    assert parse_spec("none,lm_head=int4").formats == (WeightFormat(4, 32),)


def test_the_text_of_a_spec_reads_as_that_spec() -> None:
    formats = [None, *map(parse_format, NAMES)]
    specs = [QuantizeSpec(*parts) for parts in itertools.product(formats, repeat=3)]
    assert [parse_spec(str(spec)) for spec in specs] == specs
    assert len(set(map(str, specs))) == len(specs)


@pytest.mark.parametrize(
    "text",
    [
        "", "fp4", "int4:", "int4,head=int8", "int4,lm_head", "int4,lm_head=", "int4,int8",
        "int4,lm_head=int8,lm_head=int8", "embedding=int8",
    ],
)  # fmt: skip
def test_wrong_specs_are_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="quantize"):
        parse_spec(text)


def test_each_target_has_formats() -> None:
    assert set().union(*(target.weight_formats for target in TARGETS.values())) == set(FORMATS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int4", "int4:g32,embedding=none,lm_head=int4:g32"),
        ("int8:g64", "int8:g64,embedding=int8:g64,lm_head=int8:g64"),
        ("fp8,embedding=int8", "fp8,embedding=int8:g32,lm_head=fp8"),
        ("fp8", "fp8,embedding=none,lm_head=fp8"),
        ("int4,embedding=none,lm_head=int8", "int4:g32,embedding=none,lm_head=int8:g32"),
        ("none,lm_head=int4", "none,embedding=none,lm_head=int4:g32"),
    ],
)
def test_an_embedding_that_cannot_follow_stays(text: str, expected: str) -> None:
    assert str(TARGETS["tensorrt"].parse_quantize(text)) == expected


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        ("onnx", "int4,embedding=int4", "target onnx the embedding must be int8 or none, not int4:g32"),
        ("onnx", "w8a8", "must not be w8a8: target onnx keeps activations"),
        ("onnx", "int8,lm_head=w8a8", "must not be w8a8"),
        ("onnx", "uint4", "must not be uint4:g32: target onnx has no such products"),
        ("tensorrt", "int4:fp16", "must not be int4:g32:fp16: target tensorrt or tensorrt-rtx has no such"),
        ("onnx", "mxfp4", "must not be mxfp4: target onnx has no such products"),
        ("tensorrt", "int4,lm_head=mxfp4", "must not be mxfp4: target tensorrt or tensorrt-rtx has no such"),
        ("onnx", "fp8", "must not be fp8: target onnx has no such products"),
        ("tensorrt-rtx", "w8a8", "must not be w8a8: target tensorrt or tensorrt-rtx keeps activations"),
    ],
)
def test_what_a_target_cannot_do_is_refused_by_name(target: str, text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        TARGETS[target].parse_quantize(text)


def test_the_cpu_refuses_fp8() -> None:
    cpu = TARGETS["cpu"]
    assert cpu.parse_quantize("int4,lm_head=w8a8") == parse_spec("int4,lm_head=w8a8")
    for text in ("fp8", "int4,embedding=fp8", "none,lm_head=fp8"):
        with pytest.raises(InvalidOptionError, match="must not be fp8: target cpu"):
            cpu.parse_quantize(text)
    with pytest.raises(InvalidOptionError, match="target cpu has no kernels for fp8"):
        parse_format("fp8").panel_bytes(64)
