"""Engines with 2:4 sparse matrices: what the option asks for is what they hold, cost and record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from support.tiny_models import make_variant
from tensorwright.builder.build import BuildResult, build
from tensorwright.builder.options import BuildOptions
from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.errors import InvalidOptionError
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.plugins.quantized_matmul import quantize
from tensorwright.plugins.quantized_matmul.sparsity import density
from tensorwright.runtime.commands.cli import cli

DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_variant(tmp_path_factory.mktemp("sparsity") / "model", "llama")


@pytest.fixture(scope="module")
def built(tiny: Path) -> BuildResult:
    return build(tiny, tiny.parent / "engine", quantize="int8", sparsity="2:4", accuracy_tokens=16)


def test_the_layers_alone_are_sparse(built: BuildResult) -> None:
    assert built.config["build_options"]["quantize"] == "int8:g32:2:4,embedding=int8:g32,lm_head=int8:g32"
    assert built.config["quantization"]["spec"] == built.config["build_options"]["quantize"]


def test_density_and_error_are_recorded(built: BuildResult, tiny: Path) -> None:
    w = to_float32(open_checkpoint(tiny).read(DOWN))
    record = built.config["quantization"]
    assert record["densities"]["mlp.down_proj"] == [density(w.shape[1])] * 2
    assert set(record["densities"]) == set(record["weight_errors"]) - {"embedding", "lm_head"}
    lost = w - quantize.dequantized(quantize.quantize_weights(w, parse_format("int8:g32:2:4")), w.shape[1])
    ratio = np.sqrt(np.square(lost, dtype=float).sum() / np.square(w, dtype=float).sum())
    assert record["weight_errors"]["mlp.down_proj"][1] == pytest.approx(ratio, rel=2e-3)
    assert 0.2 < record["weight_errors"]["mlp.down_proj"][1] < 0.5  # Dense int8 loses less than 0.01.
    assert built.config["accuracy"]["output_errors"]["mlp.down_proj"][1] > 0.05


def test_inspect_shows_what_is_kept(built: BuildResult) -> None:
    shown = CliRunner().invoke(cli, ["inspect", str(built.path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "2:4 sparse.mlp.down_proj" in shown.output
    assert "0.5, at most 0.5 (layer 1) kept" in shown.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": "2:4", "quantize": "w8a8"}, "no 2:4 sparse weights of format w8a8"),
        ({"sparsity": "2:4", "quantize": "int4:fp16"}, "no 2:4 sparse weights of format int4:g32:fp16"),
        ({"sparsity": "2:4", "quantize": "uint4"}, "no 2:4 sparse weights of format uint4:g32"),
        ({"sparsity": "2:4", "quantize": "int4:wo"}, "no 2:4 sparse weights of format int4:g32:wo"),
        ({"quantize": "int8:wo:2:4"}, "no 2:4 sparse weights of format int8:g32:wo"),
        ({"quantize": "int8:g64:2:4:wo"}, "no 2:4 sparse weights of format int8:g64:wo"),
        ({"sparsity": "2:4", "quantize": "fp8"}, "no 2:4 sparse weights of format fp8"),
        ({"sparsity": "2:4", "quantize": "mixed:4.5"}, "needs quantize: int4 or int8, .* in place of mixed:4.5"),
        ({"sparsity": "2:4"}, "needs quantize: int4 or int8"),
        ({"sparsity": "1:4", "quantize": "int4"}, "sparsity must be one of none, 2:4, not"),
        ({"sparsity": "2:4", "quantize": "int4", "target": "onnx"}, "int4:g32:2:4: target onnx has no such"),
        ({"sparsity": "2:4", "quantize": "int4", "target": "tensorrt"}, "tensorrt-rtx has no such products"),
        ({"quantize": "none,lm_head=int4:2:4", "calibrate": "gptq"}, "chooses whole numbers, and no matrix of"),
        ({"quantize": "none,lm_head=int4:2:4", "calibrate": "awq"}, "scales channels for"),
        ({"quantize": "int4:2:4", "target": "onnx"}, "int4:g32:2:4: target onnx has no such products"),
        ({"quantize": "int4,embedding=int8:2:4"}, "the embedding must not be int8:g32:2:4"),
    ],
)
def test_what_cannot_be_sparse_is_refused_by_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        BuildOptions(**options)
