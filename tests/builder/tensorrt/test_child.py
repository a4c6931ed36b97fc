"""The building process with TensorRT for RTX itself, on small ONNX models: errors, the parser's abort, its cure."""

from __future__ import annotations

import dataclasses

import pytest

from support.tensorrt_jobs import make_job, needs_rtx, write_model
from tensorwright.builder.emit.tensorrt.layers import check_plugins, count_kinds, parse_layers
from tensorwright.builder.emit.tensorrt.library import FLAVOURS, Library, find_library
from tensorwright.builder.emit.tensorrt.run_child import run_child
from tensorwright.errors import BuildError

pytestmark = needs_rtx
RTX = FLAVOURS["tensorrt-rtx"]


def build(tmp_path, *, library: Library | None = None, sms: tuple[int, ...] = (80, 89), **model):
    told: list[tuple[int, int]] = []
    job = make_job(write_model(tmp_path / "model.onnx", **model), sms=sms)
    return run_child(job, library or find_library(RTX), lambda *progress: told.append(progress)), told


def test_a_plan_is_written_and_its_layers_are_listed(tmp_path):
    done, told = build(tmp_path)
    assert done["plan_bytes"] == (tmp_path / "model.plan").stat().st_size > 10_000
    assert done["library_version"].startswith("1.")
    assert told
    assert all(0 <= part <= whole for part, whole in told)
    assert sum(count_kinds(parse_layers((tmp_path / "model.layers").read_text())).values()) >= 4


def test_an_engine_without_an_sm_is_built_for_those_that_the_library_chooses(tmp_path):
    build(tmp_path, sms=())
    plain = (tmp_path / "model.plan").read_bytes()
    build(tmp_path, sms=(80,))
    assert plain != (tmp_path / "model.plan").read_bytes()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"op": "NoSuchOp"}, r"model\.layers\.0/NoSuchOp \(NoSuchOp\): .*Plugin not found"),
        ({"inner": 33}, r"lm_head/MatMul \(MatMul\): .*last dimension of input0 = 32"),
    ],
)
def test_the_error_names_the_node_and_the_reason(tmp_path, model, message):
    with pytest.raises(BuildError, match=message) as error:
        build(tmp_path, **model)
    assert "cudaError 35" not in str(error.value)


def test_a_file_that_is_no_model_is_a_build_error(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(BuildError, match="parser refused the ONNX model"):
        run_child(make_job(tmp_path / "model.onnx"), find_library(RTX), lambda *_: None)


def test_a_plan_that_cannot_be_written_says_why(tmp_path):
    job = make_job(write_model(tmp_path / "model.onnx"), sms=(80,))
    job = dataclasses.replace(job, plan=str(tmp_path / "no folder" / "plan"))
    with pytest.raises(BuildError, match=r"the plan of .* MB cannot be written \(No such file.*free the disk"):
        run_child(job, find_library(RTX), lambda *_: None)


def test_shapes_that_are_not_the_models_are_refused(tmp_path):
    job = make_job(write_model(tmp_path / "model.onnx"))
    wrong = dataclasses.replace(job, profiles=({"token_ids": ((1,), (8,), (16,))},))
    with pytest.raises(BuildError, match=r"logit_rows|optimization profile"):
        run_child(wrong, find_library(RTX), lambda *_: None)


def test_the_parser_aborts_without_the_cure_and_works_with_it(tmp_path):
    """At the first node of a registered plugin; the cure is what find_library found, and nothing else changed."""
    library = find_library(RTX)
    if library.missing is None:
        pytest.skip("this installation has the name that the parser looks up")
    with pytest.raises(BuildError, match="library aborted its process"):
        build(tmp_path, library=Library(RTX), op="RmsNorm")
    build(tmp_path, op="RmsNorm")
    layers = parse_layers((tmp_path / "model.layers").read_text())
    assert check_plugins(layers, {"model.layers.0/RmsNorm": "RmsNorm"}, 2) == {"RmsNorm": 1}
