"""Gathers what a report shows of an engine: its record, its graph, its memory, its costs, and a run of it here."""

from __future__ import annotations

import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorwright.builder.graphs import import_tracing
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.plan_model import PlannedModel, open_model, plan_model
from tensorwright.engine_format.file_names import REPORT
from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import Device
from tensorwright.insight.diff.graphs import ModuleChange, compare_graphs, count_nodes
from tensorwright.insight.estimate.costs import PlannedCosts
from tensorwright.insight.estimate.roofline import time_of
from tensorwright.insight.explain.engine_view import EngineView
from tensorwright.insight.explain.explain import Explanation, explain
from tensorwright.ir.graph import Graph
from tensorwright.ir.parse import parse_graph
from tensorwright.json_text import read_json
from tensorwright.options.engine import DEFAULT_LIMITS
from tensorwright.passes.pipeline import PIPELINE
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine
from tensorwright.runtime.engine.trace_file import ENGINE, OPS, STEPS
from tensorwright.runtime.requests.prompts import PromptDict
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.tools.inspect import describe

Progress = Callable[[str, int, int], None]
REQUESTS, AT_ONCE, ANSWER = 10, 4, 24
"""The run: so many requests, of which so many run at once, with answers of so many tokens."""
_NO_PROGRESS: Progress = lambda phase, done, total: None  # noqa: E731


@dataclass(frozen=True)
class PassRow:
    """A pass. nodes: operations before and after, where the model was given. changes: the first modules it changed."""

    name: str
    why: str
    count: int
    seconds: float | None
    nodes: tuple[int, int] | None
    changes: tuple[ModuleChange, ...]


@dataclass(frozen=True)
class StepRow:
    """A step of the run. Times are seconds from its beginning. free_blocks: after it."""

    begin: float
    seconds: float
    tokens: int
    sequences: int
    waiting: int
    free_blocks: int | None


@dataclass(frozen=True)
class OpRow:
    """An instruction in all steps of a phase of the run: what it moved and computed, how long it took, and how long it
    was predicted to take."""

    phase: str
    op: str
    module: str
    arithmetic: str
    bytes: float
    operations: float
    seconds: float
    predicted: float


@dataclass(frozen=True)
class Run:
    """A real run of the engine. seconds: from the first request to the last token."""

    steps: tuple[StepRow, ...]
    ops: tuple[OpRow, ...]
    seconds: float
    tokens: int


@dataclass(frozen=True)
class ReportData:
    """All that a report shows."""

    engine: EngineDir
    facts: Mapping[str, Any]
    device: Device
    explanation: Explanation
    after: Graph
    before: Graph | None
    passes: tuple[PassRow, ...]
    buffers: tuple[Mapping[str, Any], ...]
    run: Run | None
    made: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))


def collect(
    path: str | Path, model: str | Path | None = None, *, run: bool = True, progress: Progress | None = None
) -> ReportData:
    """Gathers a report of the engine at `path`. model: the checkpoint that it was built from, or its config, for the
    graph before the passes. run: runs some requests, which takes seconds. Raises EngineError, and what a build raises.
    """
    tell = progress or _NO_PROGRESS
    engine = open_engine(path)
    tell("explain", 0, 0)
    explanation = explain(path)
    view = EngineView.of(engine, explanation.device)
    before, passes = None, _passes(engine, None)
    if model is not None:
        before, passes = _with_model(engine, model, tell)
    found: Run | None = None
    buffers: tuple[Mapping[str, Any], ...] = ()
    if view.costs is not None:
        buffers = view.costs.buffers()
        if run:
            tell("run", 0, 0)
            found = run_requests(engine, view.costs, explanation.device)
    return ReportData(
        engine, describe(engine), explanation.device, explanation, view.graph, before, passes, buffers, found
    )


def _passes(engine: EngineDir, planned: PlannedModel | None) -> tuple[PassRow, ...]:
    """Returns the passes in the order of the record, without graphs between them."""
    why = {step.name: step.why for phase in PIPELINE for step in phase.steps}
    seconds = {} if planned is None else planned.report.seconds
    report = engine.path / REPORT
    if not seconds and report.is_file():
        recorded = read_json(report.read_bytes())
        seconds = recorded.get("pass_seconds", {}) if isinstance(recorded, dict) else {}
    return tuple(
        PassRow(name, why.get(name, ""), count, seconds.get(name), None, ())
        for name, count in engine.config.passes.items()
    )


def _with_model(engine: EngineDir, model: str | Path, tell: Progress) -> tuple[Graph, tuple[PassRow, ...]]:
    """Traces the model again, and compares the graph before and after each pass."""
    import_tracing()
    kept = {"max_seq_len", "quantize", "kv_cache_dtype"}
    options = {name: value for name, value in engine.config.build_options.items() if name in kept}
    if engine.target != "cpu":
        options = {"max_seq_len": options.get("max_seq_len")}
    chosen = BuildOptions(accuracy="none", dtype=engine.dtype if engine.dtype != "float16" else "float32", **options)
    with tempfile.TemporaryDirectory() as folder:
        planned = plan_model(open_model(model), chosen, tell, dump=Path(folder))
        dumps = sorted(Path(folder).glob("*.txt"))
        rows: dict[str, PassRow] = {row.name: row for row in _passes(engine, planned)}
        graph = planned.traced
        _check_same(engine, model, graph)
        for number, dump in enumerate(dumps):
            tell("compare", number, len(dumps))
            name = dump.stem.partition("_")[2]
            after = parse_graph(dump.read_text(encoding="utf-8"))
            row = rows.get(name)
            if row is not None and row.count:
                changes = tuple(compare_graphs(graph, after)[:SHOWN_CHANGES])
                nodes = (row.nodes[0] if row.nodes else count_nodes(graph), count_nodes(after))
                rows[name] = PassRow(name, row.why, row.count, row.seconds, nodes, row.changes or changes)
            graph = after
    return planned.traced, tuple(rows.values())


def _check_same(engine: EngineDir, model: str | Path, traced: Graph) -> None:
    """Refuses a model that the engine was not built from, as far as its shape tells. Raises InvalidOptionError."""
    record, facts = engine.config.model, traced.facts
    pairs = {
        "model_type": (record.model_type, facts.model_type),
        "vocab_size": (record.vocab_size, facts.vocab_size),
        "hidden_size": (record.hidden_size, facts.set_facts.get("hidden_size")),
    }
    for name, (of_engine, of_model) in pairs.items():
        if of_engine is not None and of_model is not None and of_engine != of_model:
            raise InvalidOptionError(
                f"model: {model} has {name} {of_model}, and {engine.path} was built from one with {of_engine}; name "
                "the model that the engine was built from"
            )


SHOWN_CHANGES = 3
"""The most modules whose change by a pass is shown."""


def run_requests(engine: EngineDir, costs: PlannedCosts, device: Device) -> Run:
    """Runs REQUESTS requests of random ids, so that some wait, and returns what every step and instruction took."""
    room = engine.max_seq_len
    answer = max(1, min(ANSWER, room // 4))
    lengths = [max(1, min(room - answer - 1, 32 * (1 + number % 5))) for number in range(REQUESTS)]
    prompts: list[PromptDict] = [
        {"prompt_token_ids": [(7919 * number + 104729 * i) % engine.vocab_size for i in range(length)]}
        for number, length in enumerate(lengths)
    ]
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True, detokenize=False)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with LLM(engine.path, max_batch_size=AT_ONCE, enable_prefix_caching=False, trace=trace) as llm:
            llm.generate(prompts[:1], params)  # the first steps of an engine are slower
            begin = time.perf_counter()
            outputs = llm.generate(prompts, params)
            seconds = time.perf_counter() - begin
        events = read_json(trace.read_bytes())["traceEvents"]
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    steps = _steps(events)
    return Run(tuple(step.row for step in steps), tuple(_ops(steps, costs, device)), seconds, tokens)


@dataclass
class _Step:
    """A step of the trace. shares: (tokens, first position) of each sequence. ops: seconds of each instruction."""

    row: StepRow
    rows: int
    shares: list[tuple[int, int]] = field(default_factory=list)
    ops: list[float] = field(default_factory=list)

    @property
    def phase(self) -> str:
        one = [tokens == 1 for tokens, _ in self.shares]
        return "decode" if all(one) else "prefill" if not any(one) else "mixed"


def _steps(events: Sequence[Mapping[str, Any]]) -> list[_Step]:
    """Returns the steps of a trace but for those that warmed up, which were of the first request."""
    first = next(event["ts"] for event in events if event["ph"] == "b" and event["name"] == "request 2")
    blocks = [(e["ts"], e["args"]["blocks"]) for e in events if e.get("name") == "free KV blocks"]
    found = []
    for event in events:
        if event["ph"] == "X" and event["tid"] == STEPS and event["pid"] == ENGINE and event["ts"] >= first:
            args, end = event["args"], event["ts"] + event["dur"]
            free = next((count for moment, count in blocks if moment >= end), None)
            times = event["ts"] / 1e6, event["dur"] / 1e6
            row = StepRow(*times, args["tokens"], args["sequences"], args["waiting"], free)
            found.append((event["ts"], end, _Step(row, args["rows"])))
    begins = [begin for begin, _, _ in found]
    for event in events:
        at = bisect_right(begins, event.get("ts", -1.0) + 1e-3) - 1
        if at < 0 or event["ts"] > found[at][1]:
            continue
        if event["ph"] == "X" and event["tid"] == OPS and event["pid"] == ENGINE:
            found[at][2].ops.append(event["dur"] / 1e6)
        elif event["ph"] == "b" and event["name"] in ("prefill", "decode"):
            found[at][2].shares.append((event["args"]["tokens"], event["args"]["position"]))
    return [step for _, _, step in found]


def _ops(steps: Sequence[_Step], costs: PlannedCosts, device: Device) -> list[OpRow]:
    """Returns the instructions of each phase, summed over its steps: what the plan says that each step costs, how long
    it took, and how long it was predicted to take."""
    sums: dict[tuple[str, int], OpRow] = {}
    for step in steps:
        planned = costs.step([(tokens, position + tokens) for tokens, position in step.shares], step.rows)
        for number, (work, seconds) in enumerate(zip(planned, step.ops, strict=True)):
            before = sums.get(
                (step.phase, number), OpRow(step.phase, work.op, work.module, work.arithmetic, 0, 0, 0, 0)
            )
            sums[step.phase, number] = replace(
                before,
                bytes=before.bytes + work.bytes,
                operations=before.operations + work.operations,
                seconds=before.seconds + seconds,
                predicted=before.predicted + time_of([work], device).seconds,
            )
    return list(sums.values())


def chunk_tokens() -> int:
    """Returns the tokens of a step for which the memory map is drawn."""
    return DEFAULT_LIMITS["max_num_tokens"]
