"""Cuts a model into the graphs of all ranks of a parallel engine, and has each written by the engine's target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.engine_files import state_bytes
from tensorwright.builder.emit.quantization_record import RankMatrices, record_of_ranks
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Phases
from tensorwright.builder.plain_graph import plain_graph
from tensorwright.builder.target.interface import Emitted
from tensorwright.engine_format.file_names import RANK_GRAPH
from tensorwright.errors import InvalidOptionError, PassError, UnsupportedModelError
from tensorwright.ir import Graph
from tensorwright.ir.ops import find_spec, kind_of
from tensorwright.ir.text import print_graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.pipeline import PIPELINE, PassReport, Phase, run_pipeline
from tensorwright.passes.rewriting.compare import tokens, tolerance


@dataclass(frozen=True)
class WrittenRank:
    """What a target says of the files of one rank. blocks: the bytes of one block of each cache group. notes: its entry
    in the build report, beside what was left whole."""

    matrices: RankMatrices
    blocks: dict[int, int]
    notes: dict[str, object]


WriteRank = Callable[[int, Graph], WrittenRank]
"""Writes the files of one rank, from its number and its graph after the target's last phase."""


def emit_ranks(
    writer: EngineWriter, report: PassReport, graphs: list[tuple[Graph, Graph]], write: WriteRank
) -> Emitted:
    """Writes rank0/, rank1/, ... and returns what the engine says of them together. graphs: those of `share`."""
    blocks: dict[int, int] = {}
    states, notes = 0, []
    written: list[RankMatrices] = []
    for rank, (cached, lowered) in enumerate(graphs):
        done = write(rank, lowered)
        writer.write(RANK_GRAPH.format(rank), print_graph(cached).encode())
        written.append(done.matrices)
        for group, size in done.blocks.items():
            blocks[group] = max(blocks.get(group, 0), size)
        states = max(states, state_bytes(lowered.facts))
        whole = Counter(text.partition(": ")[2] for text in cached.facts.left_whole)
        notes.append({**done.notes, "left_whole": dict(whole)})
    record = record_of_ranks(report.graph, written)
    return Emitted(record, sum(blocks.values()), {"ranks": notes}, states)


def share(
    report: PassReport, checkpoint: Checkpoint, options: BuildOptions, phases: Phases, pipeline: tuple[Phase, ...]
) -> list[tuple[Graph, Graph]]:
    """Returns the graphs of each rank, at stage "cached" and after the last phase of `pipeline`, which is the target's.

    Raises UnsupportedModelError, InvalidOptionError and PassError for what cannot be shared.
    """
    if report.cached_graph.facts.column_orders and options.tensor_parallel > 1:
        raise UnsupportedModelError(
            f"{checkpoint.path}: tensor_parallel cannot share matrices whose codes are in an order of their own "
            "(act-order); build with pipeline_parallel alone, or name formats (--quantize)"
        )
    if options.expert_parallel and not any(kind_of(node.op) == "mixture" for node in report.cached_graph.nodes):
        raise InvalidOptionError(
            f"{checkpoint.path}: expert_parallel is for a model with a mixture of experts, and this one has none; "
            "leave it out"
        )
    with phases.run("ranks"):
        if report.differences:  # the build verifies its passes
            report.differences["ranks"] = verify_ranks(report, options, checkpoint)
        graphs = [rank_graphs(report, options, rank, pipeline) for rank in range(options.ranks)]
        require_same_steps([lowered for _, lowered in graphs], options.tensor_parallel)
    return graphs


SHARD = [phase.name for phase in PIPELINE].index("shard")
"""The phase from which on each rank has passes of its own: the same of every target's pipeline."""


def rank_graphs(
    report: PassReport, options: BuildOptions, rank: int, pipeline: tuple[Phase, ...] = PIPELINE
) -> tuple[Graph, Graph]:
    """Returns the graphs of one rank, at stage "cached" and after the last phase of `pipeline`."""
    graph = _graph_to_share(report, options, rank)
    whole = report.cached_graph.facts
    for fact in ("quantize", "kv_cache_dtype", "attention_window", "sink_tokens", "activations"):
        setattr(graph.facts, fact, getattr(whole, fact))
    own = run_pipeline(graph, pipeline=pipeline[SHARD:], done=_done(report))
    return own.cached_graph, own.graph


def _graph_to_share(report: PassReport, options: BuildOptions, rank: int) -> Graph:
    """Returns the graph of the whole model, before quantization, with the facts that say which rank it is for."""
    graph = plain_graph(report.cached_graph)
    facts = graph.facts
    facts.tensor_parallel, facts.tensor_rank = options.tensor_parallel, rank % options.tensor_parallel
    facts.expert_parallel = options.expert_parallel
    facts.pipeline_parallel, facts.pipeline_rank = options.pipeline_parallel, rank // options.tensor_parallel
    return graph


def _done(report: PassReport) -> dict[str, int]:
    """Returns the counts of the passes that ran on the whole model."""
    names = [step.name for phase in PIPELINE[:SHARD] for step in phase.steps]
    return {name: report.counts.get(name, 0) for name in dict.fromkeys(names)}


def verify_ranks(report: PassReport, options: BuildOptions, checkpoint: Checkpoint) -> float:
    """Returns the largest difference of a logit between all ranks together and the whole graph.

    Raises PassError if sums in another order do not explain it.
    """
    from tensorwright.builder.checkpoint_weights import checkpoint_weights
    from tensorwright.ir.interpret_ranks import interpret_ranks
    from tensorwright.ir.ragged import interpret_ragged

    whole = plain_graph(report.cached_graph)
    shared = [
        run_pipeline(_graph_to_share(report, options, rank), pipeline=PIPELINE[SHARD : SHARD + 1], done=_done(report))
        for rank in range(options.ranks)
    ]
    ids, weights = tokens(whole)[0].tolist(), checkpoint_weights(checkpoint)
    (wanted,) = interpret_ragged(whole, [ids], weights)
    results = interpret_ranks([own.graph for own in shared], [ids], weights)
    difference = max(float((logits - wanted).abs().max()) for (logits,) in results)
    bound = tolerance(whole, float(wanted.abs().max()))
    if not difference <= bound:
        raise PassError(
            f"{options.ranks} ranks compute other numbers than the whole graph: the largest difference of a logit must "
            f"be at most {bound:.3g} (reordered float32 sums), and is {difference:.3g}"
        )
    return difference


def require_same_steps(graphs: list[Graph], tensor: int) -> None:
    """Raises PassError unless the ranks of each stage do the same things together, in the same order."""
    for first in range(0, len(graphs), tensor):
        met = [_meetings(graph) for graph in graphs[first : first + tensor]]
        for number, own in enumerate(met):
            if own != met[0]:
                raise PassError(f"ranks {first} and {first + number} would not do the same things together")


def _meetings(graph: Graph) -> list[tuple[str, str]]:
    def meets(op: str) -> bool:
        spec = find_spec(op, graph.stage)
        return spec is not None and spec.meets_ranks

    return [(node.op, node.scope) for node in graph.nodes if meets(node.op)]
