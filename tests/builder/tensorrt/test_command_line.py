"""build-engine with the options of the TensorRT targets: they arrive, and what is refused ends with exit code 2."""

from __future__ import annotations

import json

import pytest

from support.tensorrt_jobs import needs_rtx
from tensorwright.builder.cli import main, tensorrt_lines


def call(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0), *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--target", "tensorrt-rtx", "--sm", "80", "--sm", "90"),
            "SM 90: TensorRT for RTX does not run on data-centre Hopper",
        ),
        (("--target", "tensorrt-rtx", "--sm", "80", "--quantize", "fp8"), "fp8 cannot be built for SM 80"),
        (("--max-num-tokens", "64"), "max_num_tokens is an option of target tensorrt and tensorrt-rtx"),
        (("--int4-kernel", "plugin"), "int4_kernel is an option of target"),
    ],
)
def test_refusals_end_with_exit_code_2(capsys, tmp_path, arguments, message):
    code, _, err = call(capsys, tmp_path / "model", tmp_path / "out", *arguments)
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


@needs_rtx
def test_an_engine_by_the_command(capsys, tiny, tmp_path):
    options = ("--sm", 89, "--max-batch-size", 4, "--max-num-tokens", 32, "--dtype", "bfloat16", "--accuracy", "none")
    code, out, err = call(capsys, tiny, tmp_path / "out", "--target", "tensorrt-rtx", *options, "--json")
    assert code == 0, err
    config = json.loads(out)["config"]
    asked = {"sm": [89], "max_batch_size": 4, "max_num_tokens": 32, "int4_kernel": None}
    assert {name: config["build_options"][name] for name in asked} == asked


def test_what_a_person_is_told_of_the_plan():
    notes = {
        "plan_bytes": 2_500_000, "kernel_bytes": 90_000, "seconds": 1.25, "library_version": "1.7",
        "peak_memory_bytes": {"anonymous": 120e6}, "note": "libtensorrt_rtx.so is missing",
    }  # fmt: skip
    lines = dict(tensorrt_lines({"tensorrt": notes}))
    assert lines["plan"] == "TensorRT 1.7: 2.5 MB, of it kernels of the plugins 0.09 MB; 1.2 s, at most 120 MB held"
    assert lines["library"] == "libtensorrt_rtx.so is missing"
    assert tensorrt_lines({}) == []
