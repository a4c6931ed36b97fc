"""Computes the logits that an engine is compared with: the traced graph's, streamed, or transformers' model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensorwright.builder.measure.interruptible import free_weights, short_products
from tensorwright.ir.graph import Graph
from tensorwright.ir.interpret import Weights
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.ir.walk import Walk
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.models.read_weights import evaluate_rows
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights


def reference_walk(graph: Graph, checkpoint: Checkpoint, ids: list[int], weights: Weights) -> Walk:
    """Runs `graph`, of stage "traced" or "cached", for the logits of every token. The graph does not change."""
    graph = graph.clone()
    if graph.stage == "cached":
        inputs = RaggedAdapter(graph, [ids]).inputs([len(ids)])
        tokens = "token_ids"
    else:
        tokens = "input_ids"
        inputs = {
            tokens: torch.tensor([ids], dtype=torch.int64),
            "position_ids": torch.arange(len(ids), dtype=torch.int64)[None],
        }
    inputs.update(gather_embeddings(graph, checkpoint, inputs[tokens]))
    return Walk(graph, {value.name: inputs[value.name] for value in graph.inputs}, weights)


def as_rows(logits: torch.Tensor) -> np.ndarray:
    """Returns one sequence's logits of either stage as [tokens, vocab] float32."""
    rows: np.ndarray = logits.reshape(-1, logits.shape[-1]).float().numpy()
    return rows


def transformers_logits(path: Path, ids: list[int], max_seq_len: int) -> np.ndarray:
    """Returns [len(ids), vocab] float32 of the model in float32, eager attention, longrope fixed as in the engine."""
    from transformers.utils import logging

    from tensorwright.builder.trace.fix_longrope import fix_longrope
    from tensorwright.builder.trace.load_model import find_model_class, load_config

    shows_progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # the build has a progress bar
    try:
        checkpoint = open_checkpoint(path)
        model_class: Any = find_model_class(checkpoint, load_config(checkpoint))
        model = model_class.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        ).eval()
    finally:
        if shows_progress:
            logging.enable_progress_bar()
    fix_longrope(model, max_seq_len)
    with torch.inference_mode(), short_products():  # a product with a large vocabulary takes seconds
        logits = model(torch.tensor([ids])).logits[0].numpy()
        free_weights(model)  # freeing gigabytes at once takes seconds
    return logits


def gather_embeddings(graph: Graph, checkpoint: Checkpoint, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Turns every look-up of `ids` in a table of the checkpoint into a graph input. Returns these inputs' values."""
    values: dict[str, torch.Tensor] = {}
    for node in [*graph.find("embedding"), *graph.find("quantized_embedding")]:
        source, index = node.operand(0).producer, node.operand(1)
        if index.name not in ("input_ids", "token_ids") or source.op != "weight":
            continue
        expr = source.attrs["expr"]
        rows = np.stack([to_float32(evaluate_rows(expr, checkpoint, int(i), int(i) + 1))[0] for i in ids.flatten()])
        if node.op == "quantized_embedding":
            rows = dequantized(quantize_weights(rows, node.attrs["format"]), rows.shape[1])
        rows = rows.reshape(*ids.shape, -1)
        scale = node.attrs.get("scale", 1.0)
        gathered = graph.add("input", types=[(node.output.dtype, node.output.shape)], names=["embedded"], before=node)
        graph.replace_uses(node.output, gathered.output)
        values[gathered.output.name] = torch.from_numpy(rows * np.float32(scale))
    graph.drop_dead()
    return values
