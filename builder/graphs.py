"""The first half of a build: traces a checkpoint, and rewrites its graph for a target. No weight is read for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases
from tensorwright.builder.process import paused_collector, uninterrupted
from tensorwright.builder.target.interface import Target
from tensorwright.engine_format.kv_cache import DECISION_INTERVAL
from tensorwright.engine_format.pooling import EMBED
from tensorwright.engine_format.weight_formats import UNQUANTIZED
from tensorwright.errors import BuildError, MissingDependencyError, reason
from tensorwright.installing import BUILD_PACKAGES, install
from tensorwright.ir.facts import HIDDEN, LOGITS, Facts
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.heads_checkpoint import HeadsCheckpoint
from tensorwright.models.registry import Quantized, Traced, expected_counts

if TYPE_CHECKING:
    from tensorwright.builder.trace.export import TracedHeads
    from tensorwright.ir.graph import Graph
    from tensorwright.passes.pipeline import PassReport


def import_tracing() -> None:
    """Imports torch and transformers, which takes seconds. Raises MissingDependencyError if one is not installed."""
    try:
        with uninterrupted():  # an interrupt's exception inside torch's C++ parts would abort the process
            import torch  # noqa: F401
        from tensorwright.builder.trace import export  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in BUILD_PACKAGES:
            raise
        raise MissingDependencyError(
            f"building an engine needs {error.name}, which is not installed: {install('build')}"
        ) from error


@paused_collector()
def trace_model(
    options: BuildOptions,
    target: Target,
    checkpoint: Checkpoint,
    phases: Phases,
    heads_checkpoint: HeadsCheckpoint | None = None,
) -> tuple[Graph, TracedHeads | None]:
    """Returns the traced graph with the facts that the options ask the passes for, and the heads that they ask for.

    heads_checkpoint: the heads that are built beside the model. Raises what `trace_for_engine` raises, and
    MissingDependencyError.
    """
    dtype, file = options.dtype, checkpoint.config_file
    if not checkpoint.has_parts:  # The config of a part leaves out the defaults of its class, which is imported below.
        options.max_seq_len_for(checkpoint.config, file)
    if dtype == "auto":
        dtype = target.activation_dtype(options, checkpoint.native_dtype)
    with phases.run("import"):
        # Every error that can be found without torch and transformers is raised before.
        import_tracing()
        from tensorwright.builder.trace.export import trace_for_engine, trace_with_heads
        from tensorwright.builder.trace.load_model import text_config
    with phases.run("trace"):
        max_seq_len = options.max_seq_len_for(text_config(checkpoint), file)
        heads = None
        if options.heads is None:
            rows = HIDDEN if options.task == EMBED else LOGITS
            graph = trace_for_engine(checkpoint, dtype=dtype, max_seq_len=max_seq_len, rows=rows)
        else:
            graph, heads = trace_with_heads(checkpoint, heads_checkpoint, dtype=dtype, max_seq_len=max_seq_len)
    graph.facts.block_size = target.block_size(max_seq_len)
    ask_for_quantization(graph.facts, options)
    return graph, heads


def ask_for_quantization(facts: Facts, options: BuildOptions) -> None:
    """Sets the facts that ask the passes for the quantization which the options name."""
    facts.kv_cache_dtype = options.kv_cache_dtype
    facts.attention_window = options.attention_window or 0
    facts.sink_tokens = options.shown_sink_tokens
    facts.kv_budget = options.kv_budget or 0
    facts.recent_tokens = options.kept_recent_tokens
    facts.kv_interval = 0 if options.kv_budget is None else DECISION_INTERVAL
    facts.sparse_prefill = options.sparse_prefill or 0
    facts.activations = options.activations
    facts.quantize = options.quantize_spec
    facts.channel_scales = options.calibration.scales
    facts.outlier_columns = {}  # choose_formats finds them


@paused_collector()
def rewrite_graph(
    graph: Graph,
    target: Target,
    checkpoint: Checkpoint,
    phases: Phases,
    *,
    verify: bool = False,
    dump: Path | None = None,
    heads: TracedHeads | None = None,
    choose: Callable[[Graph], None] | None = None,
) -> PassReport:
    """Runs the target's passes over a traced graph. verify, dump, choose: see `run_pipeline`. heads: those that were
    traced beside it. Raises what `run_pipeline` raises, and BuildError if the graphs cannot be dumped."""
    from tensorwright.builder.emit.quantized_weights import QuantizingWeights
    from tensorwright.builder.trace.load_model import text_config
    from tensorwright.passes.pipeline import run_pipeline

    pipeline = target.PIPELINE
    expected = _expected(graph, text_config(checkpoint))
    further = {} if heads is None else heads.heads.passes_of_features(_quantized(graph).layers)
    expected |= {name: expected[name] + more for name, more in further.items() if name in expected}
    steps = sum(len(phase.steps) for phase in pipeline)
    with phases.run("passes") as advance:
        done = 0

        def count_pass(name: str, rewrites: int, seconds: float) -> None:
            nonlocal done
            done += 1
            advance(done, steps)

        try:
            return run_pipeline(
                graph,
                verify=verify,
                weights=QuantizingWeights(checkpoint) if verify else None,
                dump=dump,
                expectations=expected,
                progress=count_pass,
                pipeline=pipeline,
                choose=choose,
            )
        except OSError as error:
            if dump is None:
                raise
            raise BuildError(f"{dump}: the graphs cannot be dumped there ({reason(error)}); choose another") from error


def _expected(graph: Graph, config: dict[str, Any]) -> dict[str, int]:
    """Returns how often each pass must fire. Rules of formats may leave it open how many matrices are quantized."""
    counts = expected_counts(config, _quantized(graph), graph.facts.set_facts.get("layers"), _traced(graph))
    spec = graph.facts.quantize
    if spec is not None and not spec.says_how_many:
        counts.pop("quantize_weights", None)
    return counts


def _traced(graph: Graph) -> Traced:
    """Returns what the trace holds of the parts that every family counts in its own words."""
    from tensorwright.passes.canonicalise_recurrences import count_recurrences

    over_positions = [node for node in graph.find("softmax") if isinstance(node.output.shape[node.attrs["dim"]], str)]
    return Traced(len(over_positions), count_recurrences(graph), len(list(graph.find("experts"))))


def _quantized(graph: Graph) -> Quantized:
    """Returns which matrices the build was asked to quantize."""
    spec = graph.facts.quantize or UNQUANTIZED
    lm_head = spec.lm_head if graph.facts.rows == LOGITS else None
    return Quantized(*(fmt is not None for fmt in (spec.linears, spec.embedding, lm_head)))
