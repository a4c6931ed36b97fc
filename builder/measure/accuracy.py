"""Measures a finished engine on a fixed text, for the accuracy record of its config.json.

"quick" compares with the traced graph in float32, its weights streamed; "full" with the float32 model in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwright.builder.emit.cpu_weights import StoredPanels, WeightTable
from tensorwright.builder.measure.interruptible import in_another_thread
from tensorwright.builder.measure.metrics import Comparison
from tensorwright.engine_format.file_names import CPU_PLAN, CPU_WEIGHTS, TOKENIZER
from tensorwright.errors import CheckpointError, MissingDependencyError
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.ops import find_spec, matrices_of
from tensorwright.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from tensorwright.builder.measure.streamed_weights import PanelSource

_LOGIT_BYTES = 64 << 20  # the most bytes of the reference's logits, which are all in memory
_MULTIPLY_ADDS = 64 * 10**9  # the most in the reference's products
CHUNK = 32  # tokens per step, and thus rows of logits in memory
_SEED = 20240229
_TEXT = Path(__file__).with_name("text.txt")


def measure_accuracy(
    kind: str, checkpoint: Checkpoint, engine: Path, traced: Graph, cached: Graph, weights: WeightTable
) -> dict[str, Any]:
    """Returns the record of the engine whose plan and weights are in the folder `engine`; kind "quick" or "full".

    `traced` and `cached` are the graphs that the engine was made from, at these stages. Raises
    MissingDependencyError if the C++ runtime is not built, CheckpointError if the tokenizer and the model disagree.
    """
    panels = StoredPanels(weights, engine / CPU_WEIGHTS)
    return measure_logits(kind, checkpoint, traced, cached, lambda ids: engine_logits(engine, ids), panels=panels)


def measure_logits(
    kind: str,
    checkpoint: Checkpoint,
    traced: Graph,
    quantized: Graph,
    run: Callable[[list[int]], Iterable[np.ndarray]],
    *,
    panels: PanelSource | None = None,
    measured_on: str | None = None,
) -> dict[str, Any]:
    """Returns the record of `run`, which yields the logits of consecutive positions of one sequence, block by block.

    `quantized`: the graph at stage "cached" with the engine's products; the errors of their outputs are measured in it.
    measured_on: the name of the executor, if it is not the engine's own.
    """
    from tensorwright.builder.measure.outputs import compute_reference

    vocab_size, max_seq_len = traced.facts.vocab_size, traced.facts.max_seq_len
    ids, text = sample_ids(checkpoint, min(token_budget(vocab_size, multiply_adds(quantized)), max_seq_len), vocab_size)
    cuts = any(multiplied(node) and "format" in node.attrs for node in quantized.nodes)
    reference, output_errors = compute_reference(kind, checkpoint, ids, traced, quantized if cuts else None, panels)
    comparison = Comparison()
    done = 0
    for logits in run(ids):
        end = done + len(logits)
        comparison.add(reference[done:end], logits, ids[done + 1 : end + 1])
        done = end
    record: dict[str, Any] = {"kind": kind, "reference_dtype": "float32", "text": text}
    if measured_on is not None:
        record["measured_on"] = measured_on
    return record | comparison.record() | output_errors


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


def token_budget(vocab_size: int, multiply_adds: int) -> int:
    """Returns how many tokens are measured: 512, fewer for a large vocabulary or model, never below 64.

    The number depends on the model alone, so that two builds measure the same. Logits have a bound to keep memory
    small, and multiplications have one so that a small model builds fast. For models so large that 64 is the number,
    the work per weight no longer grows, neither here (64 multiplications) nor in the rest of the build.
    """
    return max(64, min(512, _LOGIT_BYTES // (4 * vocab_size), _MULTIPLY_ADDS // max(1, multiply_adds)))


def sample_ids(checkpoint: Checkpoint, count: int, vocab_size: int) -> tuple[list[int], str]:
    """Returns up to `count` token ids and their source: the bundled text, or random ids without a tokenizer."""
    path = checkpoint.tokenizer_files.get(TOKENIZER)
    if path is None:
        return np.random.default_rng(_SEED).integers(0, vocab_size, count).tolist(), "random token ids"
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(path)).encode(_TEXT.read_text(encoding="utf-8")).ids[:count]
    if ids and max(ids) >= vocab_size:
        raise CheckpointError(
            f"{path}: gives token {max(ids)}, but the model has a vocabulary of {vocab_size}; "
            "it belongs to another model"
        )
    return ids, "built-in text"


def engine_logits(engine: Path, ids: list[int]) -> Iterator[np.ndarray]:
    """Yields [up to 32, vocab] float32 logits of consecutive positions, with one sequence in the engine."""
    try:
        from tensorwright.runtime import _runtime
    except ImportError as error:
        raise MissingDependencyError(
            "measuring accuracy runs the engine, and the C++ runtime is not built here; "
            "install tensorwright with its compiled module, or build with accuracy none"
        ) from error
    executor = _runtime.CpuExecutor(str(engine / CPU_PLAN), str(engine / CPU_WEIGHTS), 0, "map")
    facts = executor.facts()
    block = facts["block_size"]
    blocks = -(-len(ids) // block)
    groups = len(facts["block_bytes"])
    state_slots = [0] if facts["state_bytes"] else []
    executor.allocate([blocks] * groups, CHUNK, CHUNK, 1, len(state_slots))
    table = np.arange(blocks, dtype=np.int32)[None]
    with in_another_thread() as call:  # a step of a large engine takes seconds, and Ctrl-C must work meanwhile
        for start in range(0, len(ids), CHUNK):
            positions = list(range(start, min(len(ids), start + CHUNK)))
            count = len(positions)
            yield call(
                executor.step, [ids[p] for p in positions], positions, [0, count], [positions[-1] + 1],
                list(range(count)), [(table, positions)] * groups, state_slots,
            )  # fmt: skip
