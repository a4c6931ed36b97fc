"""Measures a finished engine on a text, for the accuracy record of its config.json.

"quick" compares with the traced graph in float32, its weights streamed; "full" with the float32 model in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwright.builder.emit.cpu_weights import StoredPanels, WeightTable
from tensorwright.builder.measure.interruptible import in_another_thread
from tensorwright.builder.measure.metrics import Comparison, HiddenComparison
from tensorwright.builder.measure.sample import Sample
from tensorwright.builder.options import BuildOptions
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.file_names import CPU_PLAN, CPU_WEIGHTS
from tensorwright.engine_format.kv_cache import step_end
from tensorwright.errors import MissingDependencyError
from tensorwright.ir.facts import HIDDEN
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.ops import find_spec, matrices_of
from tensorwright.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from tensorwright.builder.measure.rank_threads import RankThreads
    from tensorwright.builder.measure.streamed_weights import PanelSource

LOGIT_BYTES = 16 << 20
"""The most bytes of one block of logits in float32. A few blocks are in memory at a time."""
MIN_ROWS, MAX_ROWS = 32, 512
"""The fewest and the most positions in a block. With fewer, weights are read more often than they are worth."""


@dataclass(frozen=True)
class Measurement:
    """One measurement of an engine.

    kind: "quick", against the traced graph, or "full", against the model in transformers. sample: what it is measured
    on. advance: gets how far the measurement is, in parts of `total`.
    """

    kind: str
    sample: Sample
    advance: Advance = lambda done, total: None


Run = Callable[[list[int], int], Iterable[np.ndarray]]
"""Takes the token ids of a sequence, and the most positions of a block. Gives the logits of consecutive positions as
float32 [up to that many, vocab]."""

_PARTS = 1000
"""The parts of each window of which `Measurement.advance` is told: the reference's body takes BODY_PARTS of them, and
its logits, the engine and the comparison take the rest. The division is a guess at their times."""
_BODY_PARTS = 600


def measure_accuracy(
    task: Measurement, checkpoint: Checkpoint, engine: Path, traced: Graph, cached: Graph, weights: WeightTable
) -> dict[str, Any]:
    """Returns the record of the engine whose plan and weights are in the folder `engine`.

    `traced` and `cached` are the graphs that the engine was made from, at these stages. Raises
    MissingDependencyError if the C++ runtime is not built.
    """
    panels = StoredPanels(weights, engine / CPU_WEIGHTS)
    with in_another_thread() as call:  # a step of a large engine takes seconds, and Ctrl-C must work meanwhile
        run = EngineLogits(engine, max(len(window.ids) for window in task.sample.windows), call)
        return measure_logits(task, checkpoint, traced, cached, run, panels=panels)


def measure_ranks(
    task: Measurement, checkpoint: Checkpoint, engine: Path, options: BuildOptions, traced: Graph, cached: Graph
) -> dict[str, Any]:
    """Does what `measure_accuracy` does for an engine with ranks, which all run in this process."""
    from tensorwright.builder.measure.rank_threads import ranks_in_threads

    longest = max(len(window.ids) for window in task.sample.windows)
    with in_another_thread() as call, ranks_in_threads(engine, options) as ranks:
        return measure_logits(task, checkpoint, traced, cached, EngineLogits(engine, longest, call, ranks))


def measure_logits(
    task: Measurement,
    checkpoint: Checkpoint,
    traced: Graph,
    quantized: Graph,
    run: Run,
    *,
    panels: PanelSource | None = None,
    measured_on: str | None = None,
) -> dict[str, Any]:
    """Returns the record of `run`. Both sides are computed and compared block by block, and no logits are kept.

    `quantized`: the graph at stage "cached" with the engine's products; the errors of their outputs are measured in it.
    measured_on: the name of the executor, if it is not the engine's own.
    """
    from tensorwright.builder.measure.outputs import open_reference

    rows = block_rows(int(traced.outputs[0].shape[-1]))
    cuts = any(multiplied(node) and "format" in node.attrs for node in quantized.nodes)
    windows = task.sample.windows
    comparison = HiddenComparison() if traced.facts.rows == HIDDEN else Comparison()
    with open_reference(task.kind, checkpoint, traced, quantized if cuts else None, panels) as reference:
        for number, window in enumerate(windows):
            comparison.begin_window(window.bytes, window.characters)

            def tell(parts: float, number: int = number) -> None:
                task.advance(int((number + parts / _PARTS) * _PARTS), len(windows) * _PARTS)

            def of_body(done: int, total: int, tell: Callable[[float], None] = tell) -> None:
                tell(_BODY_PARTS * done / total)

            done, ours = 0, iter(run(window.ids, rows))
            with closing(reference.logits(window.ids, rows, of_body)) as theirs:
                while (wanted := next(theirs, None)) is not None:
                    comparison.add(wanted, next(ours), window.targets[done : done + len(wanted)])
                    done += len(wanted)
                    del wanted  # Only one block of each side is in memory.
                    tell(_BODY_PARTS + (_PARTS - _BODY_PARTS) * done / len(window.ids))
        outputs = reference.output_record()
    record: dict[str, Any] = {"kind": task.kind, "reference_dtype": "float32", "text": task.sample.text}
    if task.sample.text_xxh3_128 is not None:
        record["text_xxh3_128"] = task.sample.text_xxh3_128
    if measured_on is not None:
        record["measured_on"] = measured_on
    return record | comparison.record() | outputs


def block_rows(vocab_size: int) -> int:
    """Returns how many positions' logits are computed and compared at a time: a multiple of MIN_ROWS, in which rows of
    a sparse prompt come."""
    return max(MIN_ROWS, min(MAX_ROWS, LOGIT_BYTES // (4 * vocab_size) // MIN_ROWS * MIN_ROWS))


def multiply_adds(graph: Graph) -> int:
    """Returns the multiply-adds that the products of a graph at stage "cached" take for each token."""
    return sum(multiplied(node) for node in graph.nodes)


def multiplied(node: Node) -> int:
    """Returns how many numbers of its matrices a node of a graph at stage "cached" multiplies a token by.

    Of a mixture of experts these are the matrices of the experts that a token takes.
    """
    record = find_spec(node.op, "cached")
    if record is None or record.kind not in ("product", "head product", "mixture"):
        return 0
    shapes = [[int(dim) for dim in w.shape] for w in matrices_of(node)]
    if record.kind != "mixture":
        return sum(map(prod, shapes))
    taken = next(v for operand, v in zip(record.operands, node.inputs, strict=False) if operand.name == "index")
    return sum(int(taken.shape[-1]) * prod(shape[1:]) for shape in shapes) if taken is not None else 0


class EngineLogits:
    """An engine of target cpu with one sequence of up to `longest` tokens, whose first position is always 0.

    call: runs a function with arguments, as `in_another_thread` gives it. ranks: the ranks of a parallel engine.
    """

    def __init__(self, engine: Path, longest: int, call: Callable[..., Any], ranks: RankThreads | None = None) -> None:
        try:
            from tensorwright.runtime import _runtime
        except ImportError as error:
            raise MissingDependencyError(
                "measuring accuracy runs the engine, and the C++ runtime is not built here; "
                "install tensorwright with its compiled module, or build with accuracy none"
            ) from error
        if ranks is None:
            self._executor = _runtime.CpuExecutor(str(engine / CPU_PLAN), str(engine / CPU_WEIGHTS), 0, "map")
        else:
            self._executor = ranks.lead()
        self._call = call
        facts = self._executor.facts()
        self._blocks = -(-longest // facts["block_size"])
        self._groups = len(facts["block_bytes"])
        self._state_slots = [0] if facts["state_bytes"] else []
        self._stop = facts["chunk_stop"]
        self._sparse = facts["sparse_prefill"] > 0
        self._rows = 0

    def __call__(self, ids: list[int], rows: int) -> Iterator[np.ndarray]:
        """Yields the logits of a new sequence, which is all prompt, as [up to `rows`, vocab] float32."""
        if rows != self._rows:
            self._executor.allocate([self._blocks] * self._groups, rows, rows, 1, len(self._state_slots))
            self._rows = rows
        table = np.arange(self._blocks, dtype=np.int32)[None]
        for start in range(0, len(ids), rows):
            end, parts = min(len(ids), start + rows), []
            while start < end:
                positions = list(range(start, step_end(start, end, self._stop)))
                count = len(positions)
                parts.append(self._call(
                    self._executor.step, [ids[p] for p in positions], positions, [0, count], [positions[-1] + 1],
                    list(range(count)), [(table, positions)] * self._groups, self._state_slots,
                    [len(ids)] if self._sparse else [],
                ))  # fmt: skip
                start = positions[-1] + 1
            yield parts[0] if len(parts) == 1 else np.concatenate(parts)
