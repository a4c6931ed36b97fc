"""Prepares what an engine is compared with: the traced graph with one sequence's inputs, or transformers' model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.measure.interruptible import free_weights, short_products
from tensorwright.builder.measure.streamed_weights import PanelSource
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.ir.graph import Graph
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.models.read_weights import evaluate_rows
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights, unpack


def reference_inputs(
    graph: Graph, checkpoint: Checkpoint, ids: list[int], panels: PanelSource | None = None
) -> tuple[Graph, dict[str, Any]]:
    """Returns a copy of `graph`, of stage "traced" or "cached", for the logits of every token of one sequence; and its
    inputs. Rows of embeddings are inputs of the copy.

    panels: where the rows of a quantized embedding are; by default they are quantized anew.
    """
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
    inputs.update(gather_embeddings(graph, checkpoint, inputs[tokens], panels))
    return graph, {value.name: inputs[value.name] for value in graph.inputs}


class TransformersModel:
    """The model in transformers, whole in memory: float32, eager attention, longrope fixed as in the engine."""

    def __init__(self, path: Path, max_seq_len: int) -> None:
        from transformers.utils import logging

        from tensorwright.builder.trace.fix_longrope import fix_longrope
        from tensorwright.builder.trace.load_model import find_model_class, load_config

        shows_progress = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # the build has a progress bar
        try:
            checkpoint = open_checkpoint(path)
            config = load_config(checkpoint)
            model_class: Any = find_model_class(checkpoint, config)
            source: dict[str, Any] = {"pretrained_model_name_or_path": path}
            if checkpoint.quantization is not None:  # transformers gets decoded weights, and needs no library for them.
                read = checkpoint_weights(checkpoint)
                decoded = {name: read(Ref(name)) for name in checkpoint.names}
                source = {"pretrained_model_name_or_path": None, "config": config, "state_dict": decoded}
            self._model = model_class.from_pretrained(
                **source, dtype=torch.float32, attn_implementation="eager", local_files_only=True
            ).eval()
        finally:
            if shows_progress:
                logging.enable_progress_bar()
        fix_longrope(self._model, max_seq_len)

    def __enter__(self) -> TransformersModel:
        return self

    def __exit__(self, *error: object) -> None:
        free_weights(self._model)  # freeing gigabytes at once takes seconds

    def logits(self, ids: list[int]) -> np.ndarray:
        """Returns [len(ids), vocab] float32."""
        with torch.inference_mode(), short_products():  # a product with a large vocabulary takes seconds
            rows: np.ndarray = self._model(torch.tensor([ids])).logits[0].numpy()
        return rows


def transformers_logits(path: Path, ids: list[int], max_seq_len: int) -> np.ndarray:
    """Returns [len(ids), vocab] float32 of the model in transformers."""
    with TransformersModel(path, max_seq_len) as model:
        return model.logits(ids)


def gather_embeddings(
    graph: Graph, checkpoint: Checkpoint, ids: torch.Tensor, panels: PanelSource | None = None
) -> dict[str, torch.Tensor]:
    """Turns every look-up of `ids` in a table of the checkpoint into a graph input. Returns these inputs' values."""
    values: dict[str, torch.Tensor] = {}
    for node in [*graph.find("embedding"), *graph.find("quantized_embedding")]:
        source, index = node.operand(0).producer, node.operand(1)
        if index.name not in ("input_ids", "token_ids") or source.op != "weight":
            continue
        expr = source.attrs["expr"]
        if node.op == "quantized_embedding" and panels is not None:
            fmt = node.attrs["format"]
            rows = np.stack([unpacked_row(expr, fmt, checkpoint, panels, int(i)) for i in ids.flatten()])
        else:
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


def unpacked_row(
    expr: WeightExpr, fmt: WeightFormat, checkpoint: Checkpoint, panels: PanelSource, row: int
) -> np.ndarray:
    """Returns a row of a packed table, float32 [K]."""
    rows, k = expr.shape(checkpoint)
    start = row // LANES * LANES
    end = min(rows, start + LANES)
    table = unpack(panels.panels(expr, fmt, start, end), fmt, end - start, k)
    return dequantized(table, k)[row - start]
