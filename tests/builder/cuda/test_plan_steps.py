"""Plans of target cuda compute what their graphs do, over ragged steps: kernels interpreted, products in numpy."""

from __future__ import annotations

import math

import pytest

from support.cuda_model import CudaModel, wide_enough
from support.cuda_plan import Product
from support.plugin_form import lower
from support.ptx.emulator import Emulator
from tensorwright.plugins.quantized_matmul import dense_launch

BLOCK = 16
SEVERAL = (
    "gemma2", "llama4_text_some", "gemma4_shared", "deepseek_v2_experts", "recurrent_gemma", "qwen3_next",
    "kimi_linear", "minimax", "lfm2",
)  # fmt: skip
"""Models with layers of several kinds. One layer does of the others."""


@pytest.mark.parametrize(
    ("variant", "dtype", "quantize", "kv"),
    [
        pytest.param("gpt2", "float32", None, "auto", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "float32", None, "auto", marks=pytest.mark.slow),
        ("gemma2", "bfloat16", None, "auto"),
        ("bloom", "bfloat16", None, "auto"),
        ("llama4_text_some", "bfloat16", None, "auto"),
        pytest.param("gemma4_shared", "bfloat16", None, "int8", marks=pytest.mark.slow),
        ("minicpm3", "bfloat16", None, "auto"),
        pytest.param("deepseek_v2_experts", "float16", "int4", "auto", marks=pytest.mark.slow),
        ("mixtral", "float16", "int4", "auto"),
        ("mamba", "bfloat16", None, "auto"),
        ("falcon_h1", "bfloat16", None, "auto"),
        pytest.param("mamba2", "float32", None, "auto", marks=pytest.mark.slow),
        ("recurrent_gemma", "bfloat16", None, "auto"),
        ("qwen3_next", "bfloat16", None, "auto"),
        pytest.param("kimi_linear", "bfloat16", "int8", "auto", marks=pytest.mark.slow),
        pytest.param("minimax", "bfloat16", None, "auto", marks=pytest.mark.slow),
        pytest.param("lfm2", "float16", "int4", "auto", marks=pytest.mark.slow),
        pytest.param("mixtral", "bfloat16", "fp8", "auto", marks=pytest.mark.slow),
        ("cohere", "bfloat16", None, "auto"),
        ("qwen2", "float16", "int4", "auto"),
        ("llama", "float16", "int8,embedding=int8,lm_head=fp8", "auto"),
        ("llama", "bfloat16", "w8a8,embedding=int8", "auto"),
        ("qwen3", "bfloat16", None, "int8"),
        ("qwen3", "bfloat16", None, "fp8"),
        pytest.param("gemma2", "float16", None, "fp8", marks=pytest.mark.slow),
    ],
)
def test_steps_equal_the_interpreter(case, interpreter, variant, dtype, quantize, kv) -> None:
    """The kernels round where the interpreter does, but the sums between are in another order: two results of equal
    rounding that share none of it are apart by root two of what each is from the exact one."""
    made = case(variant, **wide_enough(variant), **({} if variant in SEVERAL else {"num_hidden_layers": 1}))
    graph = lower(made.graph, dtype, quantize, kv, block=BLOCK, target="cuda")
    assert CudaModel(made.checkpoint, graph, interpreter).excess() <= math.sqrt(2)


def test_many_rows_of_int4_are_multiplied_by_the_library(case, interpreter, monkeypatch) -> None:
    """From the third token on, in pieces of 256 columns."""
    monkeypatch.setattr(dense_launch, "MAX_ROWS", 2)
    monkeypatch.setattr(dense_launch, "PIECE_BYTES", 1)
    made = case("qwen2", head_dim=16, num_hidden_layers=1)
    model = CudaModel(made.checkpoint, lower(made.graph, "float16", "int4", block=BLOCK, target="cuda"), interpreter)
    products = [w for one in model.plan.instructions for node in one.nodes for w in node.work if isinstance(w, Product)]
    assert len(products) >= 4
    assert model.excess() <= math.sqrt(2)


@pytest.mark.parametrize(("sm", "kv"), [(80, "fp8"), (90, "auto")])
def test_steps_of_machine_code_equal_the_interpreter(case, sm: int, kv: str) -> None:
    """The same with the kernels' compiled code, emulated: a whole model of prompts, chunks and decodes."""
    made = case("qwen3", head_dim=16, num_hidden_layers=1)
    graph = lower(made.graph, "bfloat16", None, kv, block=BLOCK, target="cuda")
    assert CudaModel(made.checkpoint, graph, Emulator(sm), sm=sm).excess() <= math.sqrt(2)
