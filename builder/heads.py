"""Builds heads that propose tokens beside the model that they belong to: their passes, and the plan of both.

Heads have the model's formats and the model's type of KV cache, but no calibration: a text is not run through them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.engine_files import heads_record
from tensorwright.engine_format.engine_config import HeadsRecord
from tensorwright.engine_format.file_names import DRAFT_TOKENS
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.heads_checkpoint import HeadsCheckpoint

if TYPE_CHECKING:
    from tensorwright.builder.trace.export import TracedHeads
    from tensorwright.passes.pipeline import PassReport, Phase


def join_heads(
    traced: TracedHeads,
    report: PassReport,
    checkpoint: Checkpoint,
    *,
    pipeline: tuple[Phase, ...],
    verify: bool,
) -> None:
    """Rewrites the heads' graph as the model's was, and puts both in the place of the graph that the target's emitter
    takes. The cached graph of the report loses the features, which are no result of the model."""
    from tensorwright.builder.emit.quantized_weights import QuantizingWeights
    from tensorwright.passes.pipeline import run_pipeline
    from tensorwright.passes.rewriting.join_draft_heads import join_draft_heads

    own, model = traced.graph.facts, report.cached_graph.facts
    own.block_size, own.kv_cache_dtype = model.block_size, model.kv_cache_dtype
    rewritten = run_pipeline(
        traced.graph,
        verify=verify,
        weights=QuantizingWeights(checkpoint) if verify else None,
        pipeline=pipeline,
        choose=partial(_take_formats, report.cached_graph),
    )
    report.graph = join_draft_heads(report.graph, rewritten.graph)
    drop_features(report.cached_graph)


def _take_formats(model: Graph, heads: Graph) -> None:
    heads.facts.quantize = model.facts.quantize


def drop_features(graph: Graph) -> None:
    """Leaves the logits as the only output of a model's graph."""
    graph.outputs = graph.outputs[:1]
    graph.drop_dead()


def write_heads(
    writer: EngineWriter, traced: TracedHeads, checkpoint: HeadsCheckpoint | None, vocab_size: int, target: str
) -> HeadsRecord:
    """Writes the model's token for each of the heads', where they propose some of them, and returns the record.
    target: the name of the engine's."""
    tokens = traced.heads.draft_tokens
    if tokens is not None:
        writer.write(DRAFT_TOKENS.format(target), tokens.astype("<i4").tobytes())
    return heads_record(traced.heads, checkpoint, vocab_size)
