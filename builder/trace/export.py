"""Traces a checkpoint: trace() gives a graph at stage "traced", of one sequence of length "seq".

input_ids int64 [1, seq], position_ids int64 [1, seq] -> logits [1, seq, vocab], in the model's own arithmetic.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from tensorwright.builder.trace.draft_heads import DraftHeads, LogitsAndFeatures, open_eagle3
from tensorwright.builder.trace.explain_export import explain_export
from tensorwright.builder.trace.fix_bias_length import fix_bias_length
from tensorwright.builder.trace.fix_dynamic_rope import fix_dynamic_rope
from tensorwright.builder.trace.fix_indexers import fix_indexers
from tensorwright.builder.trace.fix_longrope import fix_longrope
from tensorwright.builder.trace.fix_mrope import fix_mrope
from tensorwright.builder.trace.fix_text_positions import fix_text_positions
from tensorwright.builder.trace.grad_switches import drop_grad_switches
from tensorwright.builder.trace.hidden_states import HiddenStates, drop_lm_head
from tensorwright.builder.trace.imitate_weights import imitate_weights
from tensorwright.builder.trace.lean_export import lean_export
from tensorwright.builder.trace.left_out import NOT_PASSED, left_out_parts
from tensorwright.builder.trace.load_model import load_model, wide_matrices, wide_weights
from tensorwright.builder.trace.lower_aten import TABLE
from tensorwright.builder.trace.lower_fx import lower
from tensorwright.builder.trace.medusa_heads import open_medusa
from tensorwright.builder.trace.next_token_layer import open_own_layer
from tensorwright.builder.trace.sorted_sets import sorted_sets
from tensorwright.builder.trace.trace_experts import make_experts_opaque
from tensorwright.builder.trace.trace_other_experts import make_other_experts_opaque
from tensorwright.builder.trace.trace_recurrences import opaque_recurrences
from tensorwright.builder.trace.weight_names import find_weights
from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.errors import InvalidOptionError, TraceError, UnsupportedModelError
from tensorwright.ir.facts import HIDDEN, LOGITS, Facts
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.heads_checkpoint import MEDUSA, HeadsCheckpoint
from tensorwright.options.build import OWN_HEADS

_EXAMPLE_LENGTH = 7
_MIN_BOUND = 64  # With a bound near the example's length the exporter would specialise on that length.


@dataclass
class TracedHeads:
    """The graph of heads, and what an engine says of them (draft_heads.py)."""

    graph: Graph
    heads: DraftHeads


def trace_for_engine(checkpoint: Checkpoint, *, dtype: str, max_seq_len: int, rows: str = LOGITS) -> Graph:
    """Returns the graph of an engine in `dtype`: float32 in every constant and operation, `dtype` in its facts.

    An engine rounds weights and activations to its type in its kernels. A trace in that type would round the constants
    too, such as Gemma's root of the hidden size. Besides, a graph is used for more than one type: an engine is rebuilt
    in another type, and measured in float32.

    rows: LOGITS, or HIDDEN for a graph without lm_head that ends with the hidden states after the final norm, float32
    [1, seq, hidden]. Raises what `trace` raises, and UnsupportedModelError for weights that must stay float32 in an
    engine of a narrower type.
    """
    return _trace(checkpoint, "float32", dtype, max_seq_len, rows=rows)[0]


def trace_with_heads(
    checkpoint: Checkpoint, heads: HeadsCheckpoint | None, *, dtype: str, max_seq_len: int
) -> tuple[Graph, TracedHeads]:
    """Returns the graph of an engine with heads, which has two outputs, the logits and the features that the heads
    read; and the heads. heads: None means the checkpoint's own layer that predicts further tokens. Raises what
    `trace_for_engine` raises, and CheckpointError for heads of another model."""
    graph, traced = _trace(checkpoint, "float32", dtype, max_seq_len, OWN_HEADS if heads is None else heads)
    if traced is None:
        raise TraceError(f"{checkpoint.path}: the heads were not traced")
    return graph, traced


def trace(checkpoint: Checkpoint, *, dtype: str, max_seq_len: int) -> Graph:
    """Returns the graph of `checkpoint` as transformers computes it in `dtype` (one of DTYPES) with eager attention.

    Weights are expressions over checkpoint names; none is read. longrope is fixed to the frequencies it has at
    `max_seq_len`, which the fact "longrope" names. Raises UnsupportedModelError, CheckpointError,
    TraceError (which names the operation and its module path), InvalidOptionError.
    """
    return _trace(checkpoint, dtype, dtype, max_seq_len)[0]


def _trace(
    checkpoint: Checkpoint,
    arithmetic: str,
    dtype: str,
    max_seq_len: int,
    heads: HeadsCheckpoint | str | None = None,
    rows: str = LOGITS,
) -> tuple[Graph, TracedHeads | None]:
    """Traces. `arithmetic`: the type that the model computes in; `dtype`: the type of the engine. heads: a checkpoint
    of heads, or OWN_HEADS."""
    if dtype not in DTYPES:
        raise InvalidOptionError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if max_seq_len < 2:
        raise InvalidOptionError(f"max_seq_len must be at least 2, not {max_seq_len}")
    model = load_model(checkpoint, arithmetic, bare=rows == HIDDEN)
    if rows == HIDDEN:
        drop_lm_head(model)
    wide_weights(model, dtype)
    longrope = fix_longrope(model, max_seq_len)
    fix_dynamic_rope(model, max_seq_len)
    fix_bias_length(model, max_seq_len, max(max_seq_len, _MIN_BOUND))
    fix_text_positions(model)
    make_experts_opaque(model)
    make_other_experts_opaque(model)
    indexers = fix_indexers(model, max_seq_len)
    weights = find_weights(model, checkpoint)
    fix_mrope(model, weights.part)
    _move_stored_buffers(model, weights.expressions)
    opened = None
    if isinstance(heads, HeadsCheckpoint):
        opened = (open_medusa if heads.kind == MEDUSA else open_eagle3)(heads, model, weights)
    elif heads is not None:
        opened = open_own_layer(checkpoint, model, arithmetic, dtype, max_seq_len)
    expressions = weights.expressions if opened is None else weights.expressions | opened.feature_weights
    program = _export(model, max_seq_len, opened, rows)
    graph = Graph(model.config.get_text_config().model_type, "traced")
    graph.facts = model_facts(model, checkpoint, dtype, max_seq_len)
    graph.facts.rows = rows
    graph.facts.longrope = longrope
    wide = [weights.expressions[name] for name in wide_matrices(model, dtype) if name in weights.expressions]
    graph.facts.wide = sorted({stored for expr in wide for stored in expr.refs()})
    lower(program, expressions, graph, TABLE, results=1 if opened is None else 2)
    used = {name for node in graph.find("weight") for name in node.attrs["expr"].refs()}
    left_out = left_out_parts(model, checkpoint, weights.part, weights.targets, used, indexers)
    graph.facts.left_out = left_out
    if passed_by := sum(part["reason"] == NOT_PASSED for part in left_out.values()):
        graph.facts.layers -= passed_by
    if opened is None:
        return graph, None
    theirs = _trace_heads(opened, graph.facts)
    _take_in(graph, theirs)
    return graph, TracedHeads(theirs, opened)


def _take_in(graph: Graph, heads: Graph) -> None:
    """Takes the layers that the heads read out of the record of what the engine leaves out."""
    read = {name for node in heads.find("weight") for name in node.attrs["expr"].refs()}
    graph.facts.left_out = {
        part: entry
        for part, entry in graph.facts.left_out.items()
        if not any(name.startswith(f"{part}.") for name in read)
    }


def _trace_heads(heads: DraftHeads, facts: Facts) -> Graph:
    """Returns the graph of heads. facts: those of the model's graph."""
    graph = Graph(heads.kind, "traced")
    graph.facts = Facts(
        model_type=heads.kind, dtype=facts.dtype, max_seq_len=facts.max_seq_len, vocab_size=facts.vocab_size
    )
    graph.facts.wide = heads.wide
    program = _export_heads(heads, facts.max_seq_len)
    lower(program, heads.head_weights, graph, TABLE, results=2)
    return graph


def _move_stored_buffers(model: PreTrainedModel, stored: Container[str]) -> None:
    """Moves the stored buffers to the meta device: they are weights, and no weight has values while it is traced."""
    for name, buffer in list(model.named_buffers()):
        if name in stored:
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, buffer.to("meta"))


class _LogitsOnly(nn.Module):
    """The model as a function of token ids and positions, without a cache, with logits of every position."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        more: dict[str, Any] = {"position_ids": position_ids} if self.takes_positions else {}
        return self.model(input_ids=input_ids, use_cache=False, return_dict=True, **more).logits


def _example_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(1, _EXAMPLE_LENGTH, dtype=torch.int64)
    return ids, ids.clone()


def _export(
    model: PreTrainedModel, max_seq_len: int, heads: DraftHeads | None = None, rows: str = LOGITS
) -> torch.export.ExportedProgram:
    imitate_weights(model)
    logits: nn.Module = HiddenStates(model) if rows == HIDDEN else _LogitsOnly(model)
    if heads is not None:
        imitate_weights(heads.features)
        logits = LogitsAndFeatures(logits, heads)
    with opaque_recurrences(model), sorted_sets(model):
        return _export_function(
            logits, _example_inputs(), max_seq_len, model.config.model_type, lambda error: explain_export(model, error)
        )


def _export_heads(heads: DraftHeads, max_seq_len: int) -> torch.export.ExportedProgram:
    imitate_weights(heads.head)
    wrapper = nn.Module()
    wrapper.model = heads.head
    wrapper.forward = heads.head.forward  # type: ignore[method-assign]
    examples = (*_example_inputs(), torch.zeros(1, _EXAMPLE_LENGTH, heads.width))
    return _export_function(wrapper, examples, max_seq_len, heads.kind, lambda error: str(error))


def _export_function(
    module: nn.Module,
    examples: tuple[torch.Tensor, ...],
    max_seq_len: int,
    name: str,
    explain: Callable[[Exception], str],
) -> torch.export.ExportedProgram:
    """Exports a function of tensors [1, seq, ...] for any length. name: what it is called in errors."""
    drop_grad_switches(module)
    seq = torch.export.Dim("seq", min=2, max=max(max_seq_len, _MIN_BOUND))
    try:
        with torch.no_grad(), warnings.catch_warnings(), lean_export():
            warnings.simplefilter("ignore")
            return torch.export.export(module, examples, dynamic_shapes=tuple({1: seq} for _ in examples), strict=False)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{name}: {error}; docs/families.md lists the families that are") from error
    except Exception as error:  # The exporter has no common error type; every error means the same to the user.
        raise TraceError(
            f"{name} could not be exported with a dynamic length: {explain(error)}; "
            "a decoder must compute the same for every length, with its weights and inputs alone"
        ) from error


def model_facts(model: PreTrainedModel, checkpoint: Checkpoint, dtype: str, max_seq_len: int) -> Facts:
    """Returns the facts of the model, or of its text part. A fact that its config lacks, or that differs from layer to
    layer, is not set."""
    config = model.config.get_text_config()
    facts = Facts(model_type=config.model_type, dtype=dtype, max_seq_len=max_seq_len)
    names = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "max_position_embeddings": "max_position_embeddings",
    }
    values = {fact: _config_value(config, key) for fact, key in names.items()}
    facts.update(**{fact: value for fact, value in values.items() if value is not None})
    facts.bos_token_id = checkpoint.bos_token_id
    facts.eos_token_ids = checkpoint.eos_token_ids
    return facts


def _config_value(config: PreTrainedConfig, key: str) -> Any:
    try:
        return getattr(config, key, None)
    except RuntimeError:  # The config has the value for each layer alone.
        return None
