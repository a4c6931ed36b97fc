"""Options of the TensorRT targets: refused by name elsewhere, in config.json of these targets alone."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tensorwright import build
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.target import tensorrt
from tensorwright.errors import InvalidOptionError, MissingDependencyError

OWN = {"sm": (80,), "max_batch_size": 4, "max_num_tokens": 64, "int4_kernel": "plugin"}


def check(**options) -> None:
    tensorrt.check(BuildOptions(target=options.pop("target", "tensorrt-rtx"), **options))


def test_config_of_other_targets_does_not_know_them():
    known = ["target", "dtype", "max_seq_len", "accuracy", "quantize", "kv_cache_dtype"]
    assert [name for name in BuildOptions().record() if name not in OWN and name in known] == known
    assert not set(OWN) & set(BuildOptions().record())
    assert not set(OWN) & set(BuildOptions("onnx").record())
    assert set(OWN) <= set(BuildOptions("tensorrt-rtx").record())


@pytest.mark.parametrize("name", OWN)
def test_other_targets_refuse_them_by_name(name):
    for target in ("cpu", "onnx"):
        with pytest.raises(
            InvalidOptionError, match=rf"{name} is an option of target tensorrt.*leave it out for {target}"
        ):
            BuildOptions(target, **{name: OWN[name]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sm": (80, 80)}, "sm must be distinct"),
        ({"sm": ("80",)}, "sm must be distinct whole numbers"),
        ({"max_batch_size": 0}, "max_batch_size must be a whole number from 1"),
        ({"max_num_tokens": 1.5}, "max_num_tokens must be a whole number"),
        ({"int4_kernel": "ours"}, "int4_kernel must be tensorrt or plugin"),
    ],
)
def test_values_that_do_not_exist_are_refused(options, message):
    with pytest.raises(InvalidOptionError, match=message):
        BuildOptions("tensorrt-rtx", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sm": (90,)}, "SM 90: TensorRT for RTX does not run on data-centre Hopper"),
        ({"sm": (86,), "quantize": "fp8"}, "fp8 cannot be built for SM 86: it needs SM 89 or later"),
        ({"quantize": "none,lm_head=fp8"}, "fp8 cannot be built without an SM"),
        ({"sm": (75,), "dtype": "bfloat16"}, "bfloat16 cannot be built for SM 75"),
        ({"sm": (75,), "dtype": "float32"}, "float32 cannot be built for SM 75"),
        ({"sm": (75,), "quantize": "int4"}, "int4 cannot be built for SM 75"),
        ({"sm": (80,), "quantize": "w8a8"}, r"the format must not be w8a8: .*keeps activations"),
        ({"sm": (80,), "quantize": "int4,embedding=int4"}, "the embedding must be int8 or none, not int4"),
        ({"sm": (80,), "quantize": "uint4"}, r"the format must not be uint4:g32: .*no such products"),
        ({"sm": (80,), "quantize": "int5"}, "a weight format must be .*not 'int5'"),
        (
            {"sm": (80,), "int4_kernel": "plugin"},
            "int4_kernel says who multiplies int4 weights, and none are asked for",
        ),
        ({"sm": (80,), "int4_kernel": "plugin", "quantize": "int8"}, "none are asked for"),
        ({"max_batch_size": 8, "max_num_tokens": 4}, "max_num_tokens must be at least max_batch_size"),
        ({"target": "tensorrt"}, "say the --sm of that one GPU, not 0"),
        ({"target": "tensorrt", "sm": (80, 89)}, "say the --sm of that one GPU, not 2"),
    ],
)
def test_what_no_engine_can_have_is_refused_before_any_work(options, message):
    with pytest.raises(InvalidOptionError, match=message):
        check(**options)


def test_the_checkpoints_type_is_held_against_the_sms_too():
    options = BuildOptions("tensorrt-rtx", sm=(75,))
    assert tensorrt.activation_dtype(options, "float32") == "float16"
    with pytest.raises(InvalidOptionError, match=r"bfloat16 cannot be built for SM 75: .*or another --dtype"):
        tensorrt.activation_dtype(options, "bfloat16")


def test_a_refused_build_touches_nothing(tmp_path):
    with pytest.raises(InvalidOptionError, match="SM 103"):
        build(tmp_path / "no model", tmp_path / "out", target="tensorrt-rtx", sm=[103])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "triton", "tensorrt_rtx"])
def test_a_package_that_is_not_there_is_named_before_any_work(monkeypatch, package):
    def without(name):
        return None if name == package else find_spec(name)

    monkeypatch.setattr(tensorrt, "find_spec", without)
    monkeypatch.setattr("tensorwright.builder.emit.tensorrt.library.find_spec", without)
    with pytest.raises(MissingDependencyError, match=rf"{package}.* is not installed: pip install -e '.\["):
        check(sm=(80,))
