"""The plugin form of every family computes in ONNX's reference evaluator what the graph does, over ragged steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from support.plugin_form import PluginModel, lower
from support.tiny_families import families_of_experts
from tensorwright.errors import LoweringError

VARIANTS = (
    "llama", "qwen2", "mistral", "qwen3", "olmo2", "granite", "phi3_longrope_partial", "gemma2", "flint", "gemma3",
    "olmo3", "starcoder2", "stablelm_head_norms", "gpt_neox", "gpt2", "falcon_groups", "cohere", "ernie4_5", "glm",
    "glm4", "helium", "nemotron", "smollm3", "opt", "gpt_bigcode", "gptj", "cohere_head_norms", "hunyuan_v1_dense",
    "nanochat", "llama_mqa",
)  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_the_interpreter(case, variant: str, tmp_path: Path) -> None:
    made = case(variant)
    assert PluginModel(tmp_path, made.checkpoint, lower(made.graph, "float32")).excess() <= 1


@pytest.mark.parametrize("variant", families_of_experts())
def test_mixtures_of_experts_are_refused_by_name(case, variant: str, tmp_path: Path) -> None:
    made = case(variant)
    with pytest.raises(LoweringError, match="route has no ONNX form for TensorRT"):
        PluginModel(tmp_path, made.checkpoint, lower(made.graph, "float32"))


def test_slopes_are_refused_by_name(case, tmp_path: Path) -> None:
    made = case("bloom")
    with pytest.raises(LoweringError, match=r"has slopes \(alibi\), which have no ONNX form for TensorRT"):
        PluginModel(tmp_path, made.checkpoint, lower(made.graph, "float32"))


def test_latent_attention_is_refused_by_name(case, tmp_path: Path) -> None:
    made = case("minicpm3")
    with pytest.raises(LoweringError, match=r"latent attention \(head_products\) has no ONNX form for TensorRT"):
        PluginModel(tmp_path, made.checkpoint, lower(made.graph, "float32"))


@pytest.mark.parametrize(
    ("variant", "dtype", "quantize", "kv", "int4"),
    [
        ("llama", "float16", None, "auto", "native"),
        ("gemma2", "bfloat16", None, "auto", "native"),
        ("granite", "float16", None, "auto", "native"),
        ("stablelm_head_norms", "bfloat16", None, "auto", "native"),
        ("gemma3", "float32", None, "int8", "native"),
        ("flint", "bfloat16", None, "int8", "native"),
        ("llama", "float16", None, "fp8", "native"),
        ("qwen2", "float32", "int4", "auto", "native"),
        ("qwen2", "float16", "int4:g64", "auto", "plugin"),
        ("gpt2", "float32", "int4", "auto", "plugin"),
        ("gpt2", "bfloat16", "int4:g128", "int8", "native"),
        ("starcoder2", "float32", "int8", "auto", "native"),
        ("falcon_groups", "float16", "int8:g64,embedding=int8", "auto", "native"),
        ("llama_mqa", "float32", "fp8", "auto", "native"),
        ("gemma2", "bfloat16", "fp8,embedding=int8,lm_head=int4", "auto", "plugin"),
    ],
)
def test_types_and_formats(
    case, variant: str, dtype: str, quantize: str | None, kv: str, int4: str, tmp_path: Path
) -> None:
    made = case(variant)
    model = PluginModel(tmp_path, made.checkpoint, lower(made.graph, dtype, quantize, kv), int4=int4)
    assert model.excess() <= 1


def nodes(model: onnx.ModelProto, op: str) -> list[onnx.NodeProto]:
    found = [node for node in model.graph.node if node.op_type == op]
    assert found, f"the model has no {op} to break"
    return found


def set_attr(op: str, name: str, value: float) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        for node in nodes(model, op):
            (attr,) = [a for a in node.attribute if a.name == name]
            attr.CopyFrom(onnx.helper.make_attribute(name, value))

    change.__name__ = f"{op}-{name}"
    return change


def one_group(model: onnx.ModelProto) -> None:
    """The second cache group reads the first one's block tables."""
    for node in nodes(model, "PagedAttention"):
        node.input[:] = [name.replace("block_tables.1", "block_tables.0") for name in node.input]


def no_sinks(model: onnx.ModelProto) -> None:
    for node in nodes(model, "PagedAttention"):
        del node.input[-1]


def swap_pages(model: onnx.ModelProto) -> None:
    """Attention takes values for keys."""
    for node in nodes(model, "PagedAttention"):
        node.input[1], node.input[2] = node.input[2], node.input[1]


def old_pages(model: onnx.ModelProto) -> None:
    """Attention does not see what the same step wrote."""
    for node in nodes(model, "PagedAttention"):
        node.input[1] = node.input[1].replace("_out", "")


def read_scales_of_another(model: onnx.ModelProto) -> None:
    """Two matrices of one shape swap their scales."""
    first, second = [node for node in nodes(model, "DequantizeLinear") if "o_proj" in node.name][:2]
    first.input[1], second.input[1] = second.input[1], first.input[1]


MUTATIONS = [
    ("gemma3", None, "auto", set_attr("PagedAttention", "window", 0)),
    ("gemma3", None, "auto", one_group),
    ("gemma2", None, "auto", set_attr("PagedAttention", "softcap", 0.0)),
    ("gemma2", None, "auto", set_attr("AddRmsNorm", "weight_offset", 0.0)),
    ("gemma2", None, "auto", set_attr("RmsNorm", "eps", 0.1)),
    ("flint", None, "auto", no_sinks),
    ("llama", None, "auto", swap_pages),
    ("llama", None, "auto", old_pages),
    ("llama", None, "int8", set_attr("PagedAttention", "scale", 0.4)),
    ("llama", None, "fp8", set_attr("PagedAttention", "e4m3_kv", 0)),
    ("llama", "int4", "auto", read_scales_of_another),
]


@pytest.mark.parametrize(
    ("variant", "quantize", "kv", "change"), MUTATIONS, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_mutation_turns_red(
    case, variant: str, quantize: str | None, kv: str, change: Callable[[onnx.ModelProto], None], tmp_path: Path
) -> None:
    made = case(variant)
    model = PluginModel(tmp_path, made.checkpoint, lower(made.graph, "float32", quantize, kv))
    broken = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    change(broken)
    (tmp_path / "broken.onnx").write_bytes(broken.SerializeToString())
    with np.errstate(invalid="ignore"):
        assert model.excess("broken.onnx") > 3
