"""Tiny models with heads that propose tokens, as graphs that target cuda takes: each alone, and joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from support.cached_graphs import MAX_SEQ_LEN
from support.made_heads import make_heads
from support.made_medusa import make_medusa
from support.made_mtp import make_mtp
from support.plugin_form import lower
from support.tiny_models import make_tiny
from tensorwright.builder.trace.export import trace_with_heads
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.heads_checkpoint import open_heads_checkpoint
from tensorwright.passes.pipeline import PIPELINE, run_pipeline
from tensorwright.passes.rewriting.join_draft_heads import join_draft_heads

BLOCK = 16


@dataclass(frozen=True)
class HeadsCase:
    """A checkpoint with heads, and its graphs in the form that the emitter takes."""

    checkpoint: Checkpoint
    model: Graph
    heads: Graph
    joined: Graph


def make_case(
    folder: Path, kind: str, *, dtype: str = "float32", quantize: str | None = None, kv: str = "auto",
    **config: Any,
) -> HeadsCase:  # fmt: skip
    """Makes a model of two layers and its heads. kind: eagle3, medusa or mtp. config: of the heads or, for mtp, of the
    model."""
    heads: Path | None = None
    if kind == "mtp":
        target = make_mtp(folder / "model", **{"variant": "deepseek_v3_dense", **config})
    else:
        target = make_tiny(folder / "model", "llama", num_hidden_layers=2, head_dim=16)
        sizes: Mapping[str, Any] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "head_dim": 16}
        make = make_medusa if kind == "medusa" else make_heads
        heads = make(folder / "heads", target, **({} if kind == "medusa" else sizes), **config)
    return case_of(target, heads, dtype=dtype, quantize=quantize, kv=kv)


def case_of(
    target: Path, heads: Path | None, *, dtype: str, quantize: str | None = None, kv: str = "auto"
) -> HeadsCase:
    """Returns the graphs of a checkpoint and of heads beside it, or of the layer of its own that predicts tokens."""
    checkpoint = open_checkpoint(target)
    opened = None if heads is None else open_heads_checkpoint(heads)
    checkpoint.heads = None if opened is None else opened.stored
    model, traced = trace_with_heads(checkpoint, opened, dtype="float32", max_seq_len=MAX_SEQ_LEN)
    first, second = (
        lower(run_pipeline(graph, pipeline=PIPELINE[:-1]).cached_graph, dtype, quantize, kv, block=BLOCK, target="cuda")
        for graph in (model, traced.graph)
    )
    return HeadsCase(checkpoint, first, second, join_draft_heads(first, second))


def make_right_layer(folder: Path, **config: Any) -> Path:
    """Writes a checkpoint whose further layer is right most of the time: layers add little to the embedding of a token,
    and the further layer reads the embedding of the next token alone."""
    target = make_mtp(folder, "deepseek_v3_dense", **config)
    state = load_file(target / "model.safetensors")
    for name, tensor in state.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(0.05)
    layer = "model.layers.2."
    hidden = state[f"{layer}enorm.weight"].shape[0]
    state[f"{layer}enorm.weight"].fill_(1)
    state[f"{layer}eh_proj.weight"][:, :hidden] = 0
    state[f"{layer}eh_proj.weight"][:, :hidden].fill_diagonal_(1)
    state[f"{layer}eh_proj.weight"][:, hidden:].mul_(0.02)
    state[f"{layer}shared_head.norm.weight"] = state["model.norm.weight"].clone()
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    return target
