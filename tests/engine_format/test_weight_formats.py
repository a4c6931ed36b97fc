"""The grammar of `--quantize`: what it reads, how it spells it out, and what each target refuses."""

from __future__ import annotations

import itertools

import pytest

from tensorwright.engine_format.format_rules import Rule, RuleTable, matches
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
    "uint4:g32", "uint8:g128", "int4:g64:fp16", "uint4:g128:fp16", "int3:g32",
    "uint2:g64:fp16", "mxfp4", "w4a8:g32", "w4a8:g128", "w8a8", "fp8", "fp8:g128",
    "int8:g32:wo", "uint4:g128:fp16:wo", "int3:g32:wo",
    "mxfp4:wo", "int4:g32:2:4", "int8:g64:2:4",
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
        "int5", "int1", "uint6", "int4:", "int4:g16", "int4:32", "w8a8:g32", "fp8:g16", "mxfp4:g32", "", "INT4", "none",
        "uint4:", "int4:fp16:g32", "fp8:wo", "w8a8:wo", "int4:wo:fp16", "w4a8:g16", "w4a8:g32:fp16", "w4a8:wo",
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


def test_rules_are_a_part_of_a_spec() -> None:
    text = "int4:g32,embedding=none,lm_head=int8:g64,a.*.w=int8:g32,a.0.*=none,b.w=w8a8"
    spec = parse_spec(" int4, a.*.w=int8,lm_head=int8:g64,a.0.*=none, embedding=none,b.w=w8a8")
    assert str(spec) == text
    assert (
        parse_spec(text) == spec != parse_spec(text.replace("a.*.w=int8:g32,a.0.*=none", "a.0.*=none,a.*.w=int8:g32"))
    )
    assert [str(fmt) for fmt in spec.formats] == ["int4:g32", "int8:g64", "int8:g32", "w8a8"]
    found = {name: spec.format_of(name, spec.linears) for name in ("a.0.w", "a.1.w", "a.w", "b.w", "b.ww")}
    int8, int4 = parse_format("int8"), parse_format("int4")
    assert found == {"a.0.w": None, "a.1.w": int8, "a.w": int4, "b.w": parse_format("w8a8"), "b.ww": int4}
    assert not spec.says_how_many
    assert parse_spec("int4,a.*=int8").says_how_many
    assert parse_spec("none").says_how_many


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a.b", "a.b", True), ("a.b", "a.bc", False), ("a*", "a", True), ("a*a", "a", False), ("*", "", True),
        ("a*b*c", "abc", True), ("a*b*c", "a.c.b.c", True), ("a*bb*b", "abb", False), ("a*b*b", "ab", False),
        ("*.7.*", "x.17.y", False), ("[ab].c", "a.c", False), ("a?c.", "abc.", False), ("*b", "ab", True),
    ],
)  # fmt: skip
def test_a_pattern_matches_whole_names(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_the_last_rule_that_matches_holds() -> None:
    """Compared with a walk through all rules, in every order of them."""
    patterns = ("a.1", "a.*", "*.1", "*")
    for order in itertools.permutations(patterns):
        table = RuleTable([Rule(pattern, pattern) for pattern in order])
        for name in ("a.1", "a.2", "b.1", "b.2"):
            expected = [pattern for pattern in order if matches(pattern, name)][-1]
            found = table.find(name)
            assert found is not None
            assert found.value == expected
    assert RuleTable([Rule("a.*", 0)]).find("b") is None


def test_rules_that_match_nothing_are_found() -> None:
    table = RuleTable([Rule(pattern, 0) for pattern in ("a.1", "b.*", "a.3", "*.2", "*")])
    assert table.idle(["a.1", "a.2"]) == ["a.3", "b.*"]


@pytest.mark.parametrize(
    "text",
    [
        "", "fp4", "int4:", "int4,head=int8", "int4,a.b=int8,a.b=int8", "int4,a.b", "int4,a.b=fp4", "int4,a .b=int8",
        "int4,ab=int8", "int4,lm_head", "int4,lm_head=", "int4,int8",
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
        ("onnx", "w4a8:g64", "must not be w4a8:g64: target onnx keeps activations"),
        ("onnx", "uint4", "must not be uint4:g32: target onnx has no such products"),
        ("tensorrt", "int4:fp16", "must not be int4:g32:fp16: target tensorrt or tensorrt-rtx has no such"),
        ("onnx", "mxfp4", "must not be mxfp4: target onnx has no such products"),
        ("tensorrt", "int4,lm_head=mxfp4", "must not be mxfp4: target tensorrt or tensorrt-rtx has no such"),
        ("onnx", "fp8", "must not be fp8: target onnx has no such products"),
        ("onnx", "int4,a.*=uint4", "must not be uint4:g32: target onnx has no such products"),
        ("onnx", "int4,a.*=fp8", "must not be fp8: target onnx"),
        ("tensorrt-rtx", "w8a8", "must not be w8a8: target tensorrt or tensorrt-rtx keeps activations"),
        ("tensorrt", "fp8:g128", "must not be fp8:g128: target tensorrt or tensorrt-rtx has no such"),
        ("onnx", "int4,lm_head=int8:wo", "must not be int8:g32:wo: target onnx keeps activations as they are in any"),
    ],
)
def test_what_a_target_cannot_do_is_refused_by_name(target: str, text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        TARGETS[target].parse_quantize(text)


def test_the_cpu_has_every_format() -> None:
    cpu = TARGETS["cpu"]
    for text in ("int4,lm_head=w8a8", "fp8", "fp8:g128,embedding=none", "none,lm_head=int8:wo"):
        assert cpu.parse_quantize(text) == parse_spec(text)


def test_which_formats_keep_activations() -> None:
    kept = [name for name in NAMES if parse_format(name).keeps_activations]
    assert kept == ["fp8", "fp8:g128", "int8:g32:wo", "uint4:g128:fp16:wo", "int3:g32:wo", "mxfp4:wo"]
    assert parse_format("int8:g32:wo").codec == parse_format("int8:g32").codec
