"""The logits an engine is compared with: of the traced graph, streamed, or of the model in transformers."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import torch

from tensorwright.builder.interruptible import free_weights, short_products
from tensorwright.builder.ir.graph import Graph, Node, Value
from tensorwright.builder.ir.interpret import interpret
from tensorwright.builder.ir.ragged import RaggedAdapter
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.dtypes import to_float32
from tensorwright.models.weights import WeightExpr, evaluate, evaluate_rows
from tensorwright.plugins.quantized_matmul.formats import parse_format
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights

_CHUNK_BYTES = 64 << 20
LINEARS = ("linear", "quantized_linear", "weight_only_linear")


def streamed_logits(graph: Graph, checkpoint: Checkpoint, ids: list[int]) -> np.ndarray:
    """[len(ids), vocab] float32 of a float32 graph at stage "traced", which stays as it is.

    No weight is held longer than its use, and none is held whole if it is large: memory stays near `_CHUNK_BYTES`.
    """
    graph = graph.clone()
    inputs = {
        "input_ids": torch.tensor([ids], dtype=torch.int64),
        "position_ids": torch.arange(len(ids), dtype=torch.int64)[None],
    }
    inputs.update(gather_embeddings(graph, checkpoint, inputs["input_ids"]))
    split_large_linears(graph)
    (logits,) = interpret(graph, inputs, lambda expr: _float32(expr, checkpoint))
    return logits[0].float().numpy()


def streamed_cached_logits(graph: Graph, checkpoint: Checkpoint, ids: list[int]) -> np.ndarray:
    """The same of a graph at stage "cached", which computes in float32."""
    graph = graph.clone()
    inputs = RaggedAdapter(graph, [ids]).inputs([len(ids)])
    inputs.update(gather_embeddings(graph, checkpoint, inputs["token_ids"]))
    split_large_linears(graph)
    inputs = {value.name: inputs[value.name] for value in graph.inputs}
    (logits,) = interpret(graph, inputs, lambda expr: _float32(expr, checkpoint))
    return logits.float().numpy()


def transformers_logits(path: Path, ids: list[int], max_seq_len: int) -> np.ndarray:
    """[len(ids), vocab] float32 of the whole model in float32 with eager attention, longrope fixed as in the engine."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from tensorwright.builder.trace.fix_longrope import fix_longrope

    shows_progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # the build has its own
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        ).eval()
    finally:
        if shows_progress:
            logging.enable_progress_bar()
    fix_longrope(model, max_seq_len)
    with torch.inference_mode(), short_products():  # a large vocabulary's product alone takes seconds
        logits = model(torch.tensor([ids])).logits[0].numpy()
        free_weights(model)  # all at once, gigabytes take seconds
    return logits


def gather_embeddings(graph: Graph, checkpoint: Checkpoint, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Turns every look-up of `ids` in a table of the checkpoint into a graph input. Gives these inputs' values."""
    values: dict[str, torch.Tensor] = {}
    for node in [*graph.find("embedding"), *graph.find("quantized_embedding")]:
        table, index = node.inputs
        if table is None or index is None or index.name not in ("input_ids", "token_ids") or _expr(table) is None:
            continue
        rows = np.stack([_row(_expr(table), checkpoint, int(i)) for i in ids.flatten()])
        if node.op == "quantized_embedding":
            fmt = parse_format(node.attrs["format"])
            rows = dequantized(quantize_weights(rows, fmt), rows.shape[1])
        rows = rows.reshape(*ids.shape, -1)
        scale = node.attrs.get("scale", 1.0)
        gathered = graph.add("input", types=[(node.output.dtype, node.output.shape)], names=["embedded"], before=node)
        graph.replace_uses(node.output, gathered.output)
        values[gathered.output.name] = torch.from_numpy(rows * np.float32(scale))
    graph.drop_dead()
    return values


def split_large_linears(graph: Graph, chunk_bytes: int = _CHUNK_BYTES) -> None:
    """A linear (or another of LINEARS) of a large w becomes a concatenation of linears over ranges of its rows.

    The numbers stay: no row of w depends on another, quantized or not.
    """
    for node in [node for node in graph.nodes if node.op in LINEARS]:
        weight = node.inputs[1]
        expr = None if weight is None else _expr(weight)
        if weight is None or expr is None or prod(int(d) for d in weight.shape) * 4 <= chunk_bytes:
            continue
        rows, columns = (int(d) for d in weight.shape)
        step = max(1, chunk_bytes // (4 * columns))
        parts = [_part(graph, node, start, min(rows, start + step)) for start in range(0, rows, step)]
        dim = node.output.rank - 1
        whole = graph.add("concat", parts, {"dim": dim}, [(node.output.dtype, node.output.shape)], before=node)
        graph.replace_uses(node.output, whole.output)
    graph.drop_dead()


def _part(graph: Graph, node: Node, start: int, end: int) -> Value:
    x, weight, bias = (*node.inputs, None)[:3]
    assert weight is not None
    operands = [x, _slice(graph, node, weight, start, end)]
    if bias is not None:
        operands.append(_slice(graph, node, bias, start, end))
    shape = (*node.output.shape[:-1], end - start)
    return graph.add(node.op, operands, dict(node.attrs), [(node.output.dtype, shape)], before=node).output


def _slice(graph: Graph, node: Node, value: Value, start: int, end: int) -> Value:
    expr = _expr(value)
    assert expr is not None, "a bias of a checkpoint's matrix is of the checkpoint too"
    kind = (value.dtype, (end - start, *value.shape[1:]))
    return graph.add("weight", (), {"expr": expr.slice(0, start, end)}, [kind], before=node).output


def _expr(value: Value) -> WeightExpr | None:
    return value.node.attrs["expr"] if value.node is not None and value.node.op == "weight" else None


def _row(expr: WeightExpr | None, checkpoint: Checkpoint, row: int) -> np.ndarray:
    assert expr is not None
    return to_float32(evaluate_rows(expr, checkpoint, row, row + 1))[0]


def _float32(expr: WeightExpr, checkpoint: Checkpoint) -> torch.Tensor:
    # The interpreter reads it and drops it, so a float32 file view needs a copy only because torch warns of read-only.
    array = to_float32(evaluate(expr, checkpoint))
    return torch.from_numpy(array if array.flags.writeable else array.copy())
