"""Engines whose matrices have formats of their own: what a file asks for is what the engine holds and shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from support.tiny_models import make_variant
from tensorwright.builder.build import BuildResult, build
from tensorwright.builder.rebuild import rebuild
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.errors import InvalidOptionError
from tensorwright.ir.parse import parse_graph
from tensorwright.runtime.commands.cli import cli

TABLE = {
    "layers": "int4:g64",
    "embedding": "none",
    "lm_head": "int8",
    "model.layers.*.self_attn.*": "int8:g64",
    "model.layers.1.mlp.down_proj.weight": "none",
    "model.layers.0.mlp.down_proj.weight": "w8a8",
}
EXPECTED = {
    "embedding": ["none"],
    "self_attn.q_proj+k_proj+v_proj": ["int8:g64", "int8:g64"],
    "self_attn.o_proj": ["int8:g64", "int8:g64"],
    "mlp.gate_proj+up_proj": ["int4:g64", "int4:g64"],
    "mlp.down_proj": ["w8a8", "none"],
    "lm_head": ["int8:g32"],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_variant(tmp_path_factory.mktemp("config") / "model", "llama")


def write(path: Path, table: dict[str, str]) -> Path:
    path.write_text(json.dumps(table))
    return path


@pytest.fixture(scope="module")
def built(tiny: Path) -> BuildResult:
    file = write(tiny.parent / "formats.json", TABLE)
    return build(tiny, tiny.parent / "engine", quantize_config=file, accuracy_tokens=16, keep_weights=True)


def test_each_matrix_has_the_format_of_the_last_pattern(built: BuildResult) -> None:
    assert built.config["quantization"]["formats"] == EXPECTED
    nodes = parse_graph((built.path / "graph.txt").read_text()).nodes
    found = [str(node.attrs["format"]) for node in nodes if "format" in node.attrs]
    by_layer = [[row[layer] for row in EXPECTED.values() if len(row) > 1] for layer in (0, 1)]
    assert found == [fmt for fmt in (*by_layer[0], *by_layer[1], "int8:g32") if fmt != "none"]
    errors = built.config["quantization"]["weight_errors"]
    assert errors["self_attn.o_proj"][0] < errors["mlp.gate_proj+up_proj"][0] / 8  # Four bits more.
    assert len(errors["mlp.down_proj"]) == 1
    assert "quantize_config" not in built.config["build_options"]


def test_what_inspect_writes_builds_the_same_engine(built: BuildResult, tiny: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["inspect", str(built.path)]).output.replace("\n", " ")
    assert "w8a8 0; none 1" in shown
    written = CliRunner().invoke(cli, ["inspect", str(built.path), "--quantize-config"]).output
    (tmp_path / "again.json").write_text(written)
    config = EngineConfig.from_dict(built.config, built.path)
    options = {"accuracy": "none", "keep_weights": False}
    again = rebuild(built.path, config, tmp_path / "again", **options, quantize_config=tmp_path / "again.json")
    same = rebuild(built.path, config, tmp_path / "same", **options)
    for engine in (again, same):
        for name in ("cpu/weights.bin", "cpu/plan.bin", "graph.txt"):
            assert (engine.path / name).read_bytes() == (built.path / name).read_bytes()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"model.layers.7.*": "int8"}, r"no weight of .*model has a name like model\.layers\.7\.\*; names are such as"),
        ({"*.input_layernorm.*": "int8"}, r"\*\.input_layernorm\.\* matches no matrix that can be quantized"),
        ({"*.k_proj.weight": "int8"}, "must have one format: model.layers.0.self_attn.q_proj.weight int4:g32, model"),
        ({"*.o_proj.weight": "int5"}, "a weight format must be int4, .* not .int5."),
    ],
)
def test_what_cannot_be_is_refused(tiny: Path, tmp_path: Path, table: dict[str, str], message: str) -> None:
    file = write(tmp_path / "formats.json", table)
    with pytest.raises(InvalidOptionError, match=f"^quantize: .*{message}"):
        build(tiny, tmp_path / "engine", quantize="int4", quantize_config=file)
    assert not (tmp_path / "engine").exists()
