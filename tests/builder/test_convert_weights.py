"""Checkpoints that store parameters in another form: the expressions give transformers' own values, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ErnieFuseAndSplitTextVisionExperts,
    Interleave,
    MergeModulelist,
    Split,
    Transpose,
    WeightConverter,
)

from support.lowered import MemorySource
from support.survey import make_model
from tensorwright.builder.trace.convert_weights import Conversions
from tensorwright.builder.trace.load_model import load_model
from tensorwright.builder.trace.weight_names import find_weights
from tensorwright.errors import CheckpointError, UnsupportedModelError
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.read_weights import evaluate, evaluate_matrix_rows

CONVERTED = {
    "hrm_text": ("gate_proj.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight", "up_proj.weight"),
    "molmo2": ("q_proj.weight", "v_proj.weight", "up_proj.weight", "gate_proj.weight", "embed_tokens.weight"),
    "qwen3_vl_moe": ("experts.gate_up_proj", "experts.down_proj"),
    "ernie4_5_vl_moe": (
        "text_moe.gate.weight",
        "text_moe.gate.moe_statics.e_score_correction_bias",
        "text_moe.experts.gate_up_proj",
        "text_moe.experts.down_proj",
        "vision_moe.experts.down_proj",
    ),
}
"""A type -> the ends of the names of parameters that its checkpoints store in another form."""


def text_weights(path: Path) -> dict[str, WeightExpr]:
    checkpoint = open_checkpoint(path)
    return find_weights(load_model(checkpoint, "float32"), checkpoint).expressions


def transpose_experts(path: Path) -> None:
    """Stores experts as the published checkpoints of Qwen3-VL-MoE do: [E, H, 2I] and [E, I, H]."""
    tensors = load_file(path / "model.safetensors")
    turned = {k: v.transpose(1, 2).contiguous() if "mlp.experts" in k else v for k, v in tensors.items()}
    assert any(turned[k].shape != v.shape for k, v in tensors.items())
    save_file(turned, path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("model_type", CONVERTED)
def test_every_parameter_has_transformers_values(tmp_path, model_type):
    model = make_model(model_type, tmp_path)
    if model_type == "qwen3_vl_moe":
        transpose_experts(tmp_path)
    checkpoint, expected = open_checkpoint(tmp_path), model.state_dict()
    found = {name: expr for name, expr in text_weights(tmp_path).items() if not isinstance(expr, Ref)}
    for end in CONVERTED[model_type]:
        assert any(name.endswith(end) for name in found), f"nothing that ends in {end} is converted"
    for name, expr in found.items():
        assert torch.equal(torch.from_numpy(evaluate(expr, checkpoint).data.copy()), expected[name]), name


def test_experts_that_are_stored_as_the_model_has_them(tmp_path):
    """transformers transposes those of Qwen3-VL-MoE by their shape, and stores them in the form of the model."""
    make_model("qwen3_vl_moe", tmp_path)
    assert all(isinstance(expr, Ref) for expr in text_weights(tmp_path).values())


def test_one_expert_is_read_at_a_time(tmp_path):
    make_model("ernie4_5_vl_moe", tmp_path)
    checkpoint, weights = open_checkpoint(tmp_path), text_weights(tmp_path)
    read: list[str] = []

    class Recording:
        shape, dtype = checkpoint.shape, checkpoint.dtype

        def read_part(self, name, ranges):
            read.append(name)
            return checkpoint.read_part(name, ranges)

    name = next(name for name in weights if name.endswith("text_moe.experts.gate_up_proj"))
    rows = evaluate_matrix_rows(weights[name], Recording(), 1, 0, 3)
    assert rows.shape == (3, 32)
    assert len(read) == 1
    assert ".experts.1.gate_proj" in read[0]


# -- each operation, and what is refused ------------------------------------------------------------------------------


class Parameters(torch.nn.Module):
    def __init__(self, **shapes: tuple[int, ...]):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, torch.nn.Parameter(torch.zeros(shape)))


class Stored(MemorySource):
    path, config = Path("a checkpoint"), {"model_type": "made up"}


def convert(operations, sources: dict[str, list[tuple[int, ...]]], targets: dict[str, tuple[int, ...]], **shapes):
    """Returns what expressions and transformers make of random tensors. sources, targets: shapes by patterns."""
    converter = WeightConverter(list(sources), list(targets), operations)
    generator = torch.Generator().manual_seed(0)
    tensors = {p: [torch.randn(s, generator=generator) for s in some] for p, some in sources.items()}
    conversions = Conversions([converter])
    for pattern, some in tensors.items():
        for i in range(len(some)):
            conversions.add(next(iter(targets)), pattern, f"{pattern}.{i}")
    stored = Stored({f"{p}.{i}": t.numpy() for p, some in tensors.items() for i, t in enumerate(some)})
    model = Parameters(**(shapes or targets))
    ours = {name: evaluate(expr, stored).data for name, expr in conversions.expressions(model, stored).items()}
    for operation in operations:
        tensors = operation.convert(
            tensors,
            source_patterns=list(sources),
            target_patterns=list(targets),
            full_layer_name=next(iter(targets)),
            model=model,
            config=None,
        )
    theirs = {name: some[0] if isinstance(some, list) else some for name, some in tensors.items()}
    return ours, theirs


ERNIE = ErnieFuseAndSplitTextVisionExperts(stack_dim=0, concat_dim=1)
EXPERTS = {"gate": [(4, 6)] * 6, "up": [(4, 6)] * 6}


@pytest.mark.parametrize(
    ("operations", "sources", "targets"),
    [
        ([Chunk(dim=0)], {"a": [(6, 4)]}, {"x": (2, 4), "y": (2, 4), "z": (2, 4)}),
        ([Chunk(dim=1)], {"a": [(6, 5)]}, {"x": (6, 3), "y": (6, 2)}),
        ([Split(dim=0)], {"a": [(9, 4)]}, {"x": (4, 4), "y": (2, 4), "z": (3, 4)}),
        ([Split(dim=1)], {"a": [(2, 7)]}, {"x": (2, 3), "y": (2, 4)}),
        ([Transpose(0, 1)], {"a": [(3, 5)]}, {"x": (5, 3)}),
        ([Transpose(1, 2, check_dims=True)], {"a": [(2, 3, 5)]}, {"x": (2, 5, 3)}),
        ([Transpose(1, 2, check_dims=True)], {"a": [(2, 3, 5)]}, {"x": (2, 3, 5)}),
        ([Transpose(1, 2, check_dims=True)], {"a": [(2, 4, 4)]}, {"x": (2, 4, 4)}),
        ([MergeModulelist(dim=0)], {"a": [(3, 5)] * 12}, {"x": (12, 3, 5)}),
        ([MergeModulelist(dim=0), Concatenate(dim=1)], {"a": [(3, 5)] * 2, "b": [(4, 5)] * 2}, {"x": (2, 7, 5)}),
        ([ERNIE], EXPERTS, {"text": (3, 8, 6), "vision": (3, 8, 6)}),
        ([ERNIE], {"down": [(4, 6)] * 3 + [(4, 2)] * 3}, {"text": (3, 4, 6), "vision": (3, 4, 2)}),
    ],
)
def test_operations(operations, sources, targets):
    ours, theirs = convert(operations, sources, targets)
    assert ours.keys() == theirs.keys() == targets.keys()
    for name, tensor in theirs.items():
        assert torch.equal(torch.from_numpy(ours[name].copy()), tensor)


@pytest.mark.parametrize(
    ("operations", "sources", "targets", "error", "words"),
    [
        ([Interleave(dim=0)], {"a": [(4, 4)]}, {"x": (4, 4)}, UnsupportedModelError, "'x' of Interleave of stored"),
        ([Chunk(0, "heads")], {"a": [(4, 4)]}, {"x": (4, 4)}, UnsupportedModelError, "Chunk of stored tensors"),
        ([Chunk(dim=0)], {"a": [(4, 4)] * 2}, {"x": (2, 4), "y": (2, 4)}, UnsupportedModelError, "Chunk of stored"),
        ([Chunk(dim=0)], {"a": [(2, 4)]}, dict.fromkeys("xyz", (1, 4)), UnsupportedModelError, "Chunk of stored"),
        ([Chunk(dim=0)], {"a": [(6, 4)]}, {"x": (4, 4), "y": (2, 4)}, CheckpointError, r"x must be \[4, 4\]"),
        ([Split(dim=0)], {"a": [(7, 4)]}, {"x": (4, 4), "y": (2, 4)}, UnsupportedModelError, "Split of stored"),
        ([Transpose(0, 1)], {"a": [(4, 6)]}, {"x": (4, 6)}, CheckpointError, r"x must be \[4, 6\]"),
        ([MergeModulelist(dim=1)], {"a": [(4, 6)]}, {"x": (4, 6)}, UnsupportedModelError, "MergeModulelist of stored"),
        ([ERNIE], {"a": [(4, 6)]}, {"x": (1, 4, 6), "y": (1, 4, 6)}, UnsupportedModelError, "ErnieFuseAndSplit"),
        ([ERNIE], {"a": [(4, 6)] * 5}, {"x": (3, 4, 6), "y": (3, 4, 6)}, CheckpointError, r"y must be \[3, 4, 6\]"),
        ([MergeModulelist(dim=0)], {"a": [(4,)], "b": [(4,)]}, {"x": (1, 4)}, UnsupportedModelError, "no single"),
    ],
)
def test_refused(operations, sources, targets, error, words):
    with pytest.raises(error, match=words):
        convert(operations, sources, targets)


def test_a_parameter_that_the_model_lacks():
    with pytest.raises(UnsupportedModelError, match="'y' of stored tensors, and the model has no such parameter"):
        convert([Chunk(dim=0)], {"a": [(4, 4)]}, {"x": (2, 4), "y": (2, 4)}, x=(2, 4))
