"""What a model in the plugin form looks like: names, types, inputs, our ops' attributes, equal bytes, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from support.plugin_form import BLOCK, PluginModel, lower
from tensorwright.builder.emit.onnx.plugin_form import emit_plugin_form
from tensorwright.errors import InvalidOptionError, LoweringError
from tensorwright.ir import Graph

TYPES = {1: "float32", 3: "int8", 6: "int32", 10: "float16", 16: "bfloat16"}


def read(path: Path) -> onnx.ModelProto:
    return onnx.load(path / "model.onnx", load_external_data=False)


def described(infos: list[onnx.ValueInfoProto]) -> list[dict]:
    found = []
    for info in infos:
        kind = info.type.tensor_type
        shape = [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
        found.append({"name": info.name, "dtype": TYPES[kind.elem_type], "shape": shape})
    return found


@pytest.fixture(scope="module")
def gemma(case, tmp_path_factory: pytest.TempPathFactory) -> PluginModel:
    """Two cache groups, int8 pages, a tied head; bfloat16."""
    made = case("gemma3")
    graph = lower(made.graph, "bfloat16", None, "int8")
    return PluginModel(tmp_path_factory.mktemp("gemma3") / "a", made.checkpoint, graph)


def test_inputs_and_outputs(gemma: PluginModel) -> None:
    model, io = read(gemma.path), gemma.io
    assert described(model.graph.input) == io["inputs"]
    assert described(model.graph.output) == io["outputs"]
    names = [tensor["name"] for tensor in io["inputs"]]
    assert names == [
        "token_ids", "positions", "seq_starts", "context_lens", "logit_rows",
        "block_tables.0", "slots.0", "block_tables.1", "slots.1",
        "k_pages.0", "v_pages.0", "k_scales.0", "v_scales.0", "k_pages.1", "v_pages.1", "k_scales.1", "v_scales.1",
    ]  # fmt: skip
    pages = {tensor["name"]: tensor for tensor in io["inputs"]}
    assert pages["k_pages.1"] == {"name": "k_pages.1", "dtype": "int8", "shape": ["pages.1", 2, BLOCK, 8]}
    assert pages["v_scales.0"] == {"name": "v_scales.0", "dtype": "float32", "shape": ["pages.0", 2, BLOCK]}
    assert pages["block_tables.1"]["shape"] == ["seqs", "max_blocks.1"]
    assert io["outputs"][0] == {"name": "logits", "dtype": "float32", "shape": ["rows", 101]}
    assert [t["name"] for t in io["outputs"][1:]] == [
        n.replace(".", "_out.") for n in names if "pages" in n or "sc" in n
    ]
    assert io["groups"] == [{"window": 16, "layers": [0]}, {"window": 0, "layers": [1]}]


def test_our_nodes_carry_what_a_parser_needs(gemma: PluginModel) -> None:
    model = read(gemma.path)
    assert {(entry.domain, entry.version) for entry in model.opset_import} == {("", 21), ("tensorwright", 1)}
    ours = [node for node in model.graph.node if node.domain]
    assert {node.op_type for node in ours} == {"RotaryKvWrite", "PagedAttention", "AddRmsNorm", "RmsNorm"}
    for node in ours:
        attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert (attrs.pop("plugin_version"), attrs.pop("plugin_namespace")) == (b"1", b"tensorwright")
        if node.op_type == "PagedAttention":
            about = {"heads": 4, "kv_heads": 2, "head_dim": 8, "has_sinks": 0, "softcap": 0.0}
            about |= {"int8_kv": 1, "e4m3_kv": 0}
            layer = 0 if "layers.0" in node.name else 1
            assert attrs.pop("scale") == pytest.approx(12**-0.5)
            assert attrs == {**about, "window": 16 if layer == 0 else 0}
            assert node.input[-1] == f"block_tables.{layer}"


def test_names_keep_the_module_path(gemma: PluginModel) -> None:
    model = read(gemma.path)
    nodes = [node.name for node in model.graph.node]
    assert len(set(nodes)) == len(nodes)
    for layer in (0, 1):
        for name in ("self_attn/RotaryKvWrite", "self_attn/PagedAttention", "self_attn.o_proj/MatMul", "mlp/MatMul"):
            assert f"model.layers.{layer}.{name}" in nodes
    for node in model.graph.node:
        assert node.name.rpartition("/")[2].split(".")[0] == node.op_type
        assert node.output[0] in (node.name, "logits")
    weights = [tensor.name for tensor in model.graph.initializer if tensor.external_data]
    assert "model.layers.1.self_attn.q_proj+k_proj+v_proj.weight" in weights
    assert "model.layers.0.mlp.gate_proj+up_proj.weight" in weights
    for tensor in model.graph.initializer:
        assert tensor.external_data or len(tensor.raw_data) <= 256, f"{tensor.name} should be in model.onnx.data"


def test_a_tied_head_is_stored_once(gemma: PluginModel) -> None:
    model = read(gemma.path)
    (head,) = [node for node in model.graph.node if node.op_type == "Gemm"]
    (gather,) = [node for node in model.graph.node if node.op_type == "Gather" and node.input[1] == "token_ids"]
    assert head.input[1] == gather.input[0] == "model.embed_tokens.weight"
    total = sum(int(e.value) for t in model.graph.initializer for e in t.external_data if e.key == "length")
    size = (gemma.path / "model.onnx.data").stat().st_size
    assert total <= size < total + 64 * len(model.graph.initializer)


@pytest.mark.parametrize(
    ("variant", "quantize", "int4"), [("llama", "int4", "plugin"), ("qwen2", "fp8,embedding=int8", "native")]
)
def test_rebuilds_are_byte_identical(case, tmp_path: Path, variant: str, quantize: str, int4: str) -> None:
    made = case(variant)
    files = []
    for name in "ab":
        model = PluginModel(tmp_path / name, made.checkpoint, lower(made.graph, "float16", quantize), int4=int4)
        files.append({path.name: path.read_bytes() for path in sorted(model.path.iterdir())})
    assert files[0] == files[1]
    assert sorted(files[0]) == ["model.onnx", "model.onnx.data"]


def test_int4_has_two_forms(case, tmp_path: Path) -> None:
    """Both with a matrix in 4 bits, and with the record of what was lost."""
    made = case("llama")
    graph, records = lower(made.graph, "bfloat16", "int4"), []
    for int4, op in (("native", "DequantizeLinear"), ("plugin", "WeightOnlyLinear")):
        made_model = PluginModel(tmp_path / int4, made.checkpoint, graph, int4=int4)
        model = read(made_model.path)
        assert sum(node.op_type == op for node in model.graph.node) == 9
        records.append(made_model.io["quantization"])
    assert records[0]["weight_errors"] == records[1]["weight_errors"]
    assert records[0]["spec"] == "int4:g32,embedding=none,lm_head=int4:g32"
    assert 4.5 <= records[0]["bits_per_weight"]["lm_head"] < 5


def test_a_tied_matrix_in_int8_counts_twice(case, tmp_path: Path) -> None:
    """Rows of it are gathered, and columns multiplied by: no layout serves both."""
    made = case("qwen2")
    model = PluginModel(tmp_path, made.checkpoint, lower(made.graph, "float32", "none,embedding=int8,lm_head=int8"))
    bits = model.io["quantization"]["bits_per_weight"]
    assert bits["embedding"] == bits["lm_head"] == 9  # a float32 scale for 32 of them
    size = (tmp_path / "model.onnx.data").stat().st_size
    weights = sum(int(np.prod(made.checkpoint.shape(name))) for name in made.checkpoint.names)
    assert 0 <= 8 * size / weights - bits["all"] < 1


def test_what_has_no_form_is_refused(case, tmp_path: Path) -> None:
    made = case("llama")
    graph = lower(made.graph, "float32")
    for options in ({"dtype": "int8"}, {"dtype": "float32", "int4": "fast"}):
        with pytest.raises(InvalidOptionError, match="must be one of"):
            emit_plugin_form(graph, made.checkpoint, tmp_path, **options)
    (node, *_) = graph.find("swiglu")
    node.op = "softmax"
    with pytest.raises(LoweringError, match=r"model\.layers\.0\.mlp: softmax has no ONNX form.*target cpu"):
        emit_plugin_form(graph, made.checkpoint, tmp_path, "float32")
    assert isinstance(graph, Graph)
    assert not list(tmp_path.iterdir())
