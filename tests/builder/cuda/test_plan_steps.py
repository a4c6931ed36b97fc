"""Plans of target cuda compute what their graphs do, over ragged steps: kernels interpreted, products in numpy."""

from __future__ import annotations

import math

import pytest

from support.cuda_model import CudaModel
from support.plugin_form import lower
from support.ptx.emulator import SMS, Emulator

BLOCK = 16
OVERRIDES: dict[str, dict] = {
    "gpt2": {"hidden_size": 64, "num_hidden_layers": 1},
    "bloom": {"hidden_size": 96, "num_hidden_layers": 1},
    "gemma2": {"head_dim": 16},  # two kinds of layers
    "llama4_text_some": {"head_dim": 16},
    "gemma4_shared": {"head_dim": 16, "global_head_dim": 24},
    "minicpm3": {"num_hidden_layers": 1},
    "mamba": {"num_hidden_layers": 1},
    "mamba2": {"num_hidden_layers": 1},
    "recurrent_gemma": {"num_attention_heads": 2, "lru_width": 48},
    "qwen3_next": {},
    "kimi_linear": {},
    "minimax": {"head_dim": 16},
    "lfm2": {"num_attention_heads": 2, "num_key_value_heads": 1},
    "deepseek_v2_experts": {},
}
"""What models need in place of heads of 16 columns and one layer."""


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
        ("qwen2", "float16", "int4", "auto"),
        ("llama", "float16", "int8,embedding=int8,lm_head=fp8", "auto"),
        ("qwen3", "bfloat16", None, "int8"),
    ],
)
def test_steps_equal_the_interpreter(case, interpreter, variant, dtype, quantize, kv) -> None:
    """The kernels round where the interpreter does, but the sums between are in another order: two results of equal
    rounding that share none of it are apart by root two of what each is from the exact one."""
    made = case(variant, **OVERRIDES.get(variant, {"head_dim": 16, "num_hidden_layers": 1}))
    graph = lower(made.graph, dtype, quantize, kv, block=BLOCK, target="cuda")
    assert CudaModel(made.checkpoint, graph, interpreter).excess() <= math.sqrt(2)


@pytest.mark.parametrize("sm", SMS)
def test_steps_of_machine_code_equal_the_interpreter(case, sm) -> None:
    """The same with the kernels' compiled code, emulated: a whole model of prompts, chunks and decodes."""
    made = case("qwen3", head_dim=16, num_hidden_layers=1)
    graph = lower(made.graph, "bfloat16", None, "auto", block=BLOCK, target="cuda")
    assert CudaModel(made.checkpoint, graph, Emulator(sm), sm=sm).excess() <= math.sqrt(2)
