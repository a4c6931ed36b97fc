"""Configs of published models against the number of parameters that they are known to have."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from support.published_configs import published_config
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.plan_model import open_model, plan_model
from tensorwright.builder.trace.declare_tensors import declare_tensors
from tensorwright.insight.estimate.costs import PlannedCosts, token_bytes
from tensorwright.insight.estimate.formula import FormulaCosts, read_shape
from tensorwright.models.config_only import ConfigOnly

KNOWN = {
    "CodeLlama-7b-hf": 6_738_546_688,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "Llama-2-7b-hf": 6_738_415_616,
    "Llama-3.1-8B-Instruct": 8_030_261_248,
    "Llama-3.2-1B": 1_235_814_400,
    "Meta-Llama-3-8B": 8_030_261_248,
    "Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-Nemo-Base-2407": 12_247_782_400,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "OLMo-1B-hf": 1_176_764_416,
    "Phi-3-mini-4k-instruct": 3_821_079_552,
    "Phi-3.5-mini-instruct": 3_821_079_552,
    "Phi-4-mini-instruct": 3_836_021_760,
    "Qwen1.5-1.8B-Chat": 1_836_828_672,
    "Qwen1.5-MoE-A2.7B-Chat": 14_315_784_192,
    "Qwen2-0.5B": 494_032_768,
    "Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-30B-A3B": 30_532_122_624,
    "SmolLM2-135M": 134_515_008,
    "SmolLM3-3B": 3_075_098_624,
    "Yi-6B": 6_061_035_520,
    "falcon-7b": 6_921_720_704,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b-it": 2_614_341_888,
    "gemma-2b": 2_506_172_416,
    "gemma-3-1b-it": 999_885_952,
    "gemma-3-270m": 268_098_176,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "phi-1_5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "pythia-160m": 162_322_944,
    "starcoder2-3b": 3_030_371_328,
}
"""The elements of all weights, a tied matrix counted once, as the hub says them of the safetensors."""
UNUSUAL = {
    "DeepSeek-V2-Lite",  # attention by latents, and a first layer without experts
    "Qwen1.5-MoE-A2.7B-Chat",  # a shared expert of another width
    "SmolLM3-3B", "gemma-2-27b", "gemma-2-2b-it", "gemma-2b", "gemma-3-1b-it", "gemma-3-270m",  # they tie
    "falcon-7b", "gpt2", "gpt2-medium", "starcoder2-3b",  # the same, and words of their own
}  # fmt: skip
"""What config.json alone does not say in the usual words. Their families are built here, so they need no formula."""


def written(folder: Path, name: str, **changes: int) -> ConfigOnly:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(published_config(name) | changes), encoding="utf-8")
    opened = open_model(file)
    assert isinstance(opened, ConfigOnly)
    return opened


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_parameters(name: str, tmp_path: Path) -> None:
    checkpoint = written(tmp_path, name)
    declare_tensors(checkpoint)
    assert sum(math.prod(checkpoint.shape(tensor)) for tensor in checkpoint.names) == KNOWN[name]


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - UNUSUAL))
def test_parameters_by_the_formula(name: str) -> None:
    """It counts matrices alone, so vectors, and tables of positions, are missing."""
    shape = read_shape(published_config(name), name)
    assert shape.parameters == pytest.approx(KNOWN[name], rel=0.015)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers"), [("Llama-3.2-1B", 4), ("SmolLM2-135M", 5), ("Qwen3-0.6B", 3)])
def test_the_plan_and_the_formula_agree(name: str, layers: int, tmp_path: Path) -> None:
    """Of a few layers of each model: a trace takes its time for each of them, and all are alike."""
    checkpoint = written(tmp_path, name, num_hidden_layers=layers)
    options = BuildOptions(accuracy="none", dtype="bfloat16", quantize="int8", max_seq_len=4096)
    planned = PlannedCosts(plan_model(checkpoint, options).plan.data)
    formula = FormulaCosts(read_shape(checkpoint.config, name), "bfloat16", options.quantize_spec)
    assert formula.weights_bytes == pytest.approx(planned.weights_bytes, rel=0.02)
    assert token_bytes(formula) == token_bytes(planned)
    for sequences in ([(1, 1000)], [(1, 500)] * 8, [(256, 256)]):
        sums = [
            [sum(getattr(work, field) for work in costs.step(sequences, 1)) for field in ("weight_bytes", "operations")]
            for costs in (planned, formula)
        ]
        assert sums[1] == pytest.approx(sums[0], rel=0.05)
