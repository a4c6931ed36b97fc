"""A traced graph against the model it was traced from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tolerances import chain_tolerance

from support.harness import reference_logits, worst
from support.tiny_models import load_eager
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.ir import Graph
from tensorwright.ir.interpret import interpret
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint

LENGTHS = (2, 33)
"""A short text, and one past every sliding window. None has the length of the exporter's example."""
SCANS = ("state_space_scan", "selective_scan", "delta_rule", "rg_lru", "linear_attention")
OTHER_SUMS = {
    "deepseek_v2": "rotates by complex numbers, which torch computes in other loops than real ones",
    "llama4_text": "rotates by complex numbers, which torch computes in other loops than real ones",
    "bloom": "adds alibi inside the product of q and k (baddbmm)",
}
"""Families of which torch computes a sum in another way than our definition does."""


def logits(graph: Graph, checkpoint: Checkpoint, ids: torch.Tensor) -> torch.Tensor:
    inputs = {"input_ids": ids, "position_ids": torch.arange(ids.shape[1])[None]}
    (result,) = interpret(graph, inputs, checkpoint_weights(checkpoint))
    return result


def assert_same_logits(graph: Graph, path: Path, dtype: str, lengths: Sequence[int] = LENGTHS) -> None:
    checkpoint, model = open_checkpoint(path), load_eager(path, dtype)
    for length in lengths:
        ids = torch.randint(0, 97, (1, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            expected = model(input_ids=ids, use_cache=False).logits
        result = logits(graph, checkpoint, ids)
        assert result.dtype == expected.dtype == getattr(torch, dtype)
        if has_scans(graph):
            # transformers scans in blocks of tokens, our definition token by token.
            bound = chain_tolerance(
                dtype, model.config.hidden_size, len(graph.find("linear")), float(expected.abs().max())
            )
            assert float((result - expected).abs().max()) <= bound
        elif model.config.model_type in OTHER_SUMS or has_experts(graph):
            exact = reference_logits(path, ids[0].tolist(), torch.float64)
            assert worst(result[0].numpy(), exact) <= 4 * worst(expected[0].numpy(), exact)
        else:
            # The same torch kernels on the same shapes: nothing may differ.
            assert torch.equal(result, expected)


def has_experts(graph: Graph) -> bool:
    """Whether the graph has experts. Torch multiplies their rows in groups of other sizes, by kernels that may differ
    from one processor to another."""
    return any(node.op.startswith("experts") for node in graph.nodes)


def has_scans(graph: Graph) -> bool:
    """Whether the graph has a recurrence whose sums transformers orders in another way."""
    return any(graph.find(op) for op in SCANS)
