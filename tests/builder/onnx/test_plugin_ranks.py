"""The plugin forms of all ranks of an engine, evaluated together, compute what the interpreter does of these ranks."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.plugin_form import BLOCK, SEQUENCES, STEPS, OnnxSteps, PluginModel, finite, lower, pairs, rms
from support.shared_graphs import shared
from support.waiting import PATIENCE
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.emit.onnx.plugin_form import MODEL
from tensorwright.builder.emit.onnx.reference_ops import evaluator
from tensorwright.builder.measure.interpreter import narrowed
from tensorwright.errors import LoweringError
from tensorwright.ir.interpret_ranks import interpret_ranks
from tensorwright.plugins.gpu.tensorrt_op import PluginOp


class Meeting:
    """What ranks bring to each other: sums in their type, in the order of ranks."""

    def __init__(self, tensor: int, stages: int):
        self.tensor, self.parts = tensor, [None] * (tensor * stages)
        self.barriers = [threading.Barrier(tensor, timeout=PATIENCE) for _ in range(stages)]
        self.changed, self.moved = threading.Condition(), {}

    def of(self, rank: int) -> Any:
        sent, got = Counter(), Counter()

        def meet(op: PluginOp, x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
            if op.name == "Send":
                with self.changed:
                    self.moved[rank + self.tensor, sent["values"]] = x
                    self.changed.notify_all()
                sent["values"] += 1
                return np.zeros((1, 1), x.dtype)
            if op.name == "Receive":
                key = (rank, got["values"])
                got["values"] += 1
                with self.changed:
                    assert self.changed.wait_for(lambda: key in self.moved, PATIENCE)
                return self.moved[key]
            stage, barrier = rank // self.tensor, self.barriers[rank // self.tensor]
            self.parts[rank] = x
            barrier.wait()
            parts = list(self.parts[stage * self.tensor : (stage + 1) * self.tensor])
            barrier.wait()
            if op.name == "AllGather":
                return np.stack(parts)
            total = parts[0]
            for part in parts[1:]:
                total = (total.astype(np.float32) + part.astype(np.float32)).astype(x.dtype)
            return total

        return meet


class LastOnly(OnnxSteps):
    """A stage that is not the last gives no logits."""

    def run(self, counts: Any) -> list[np.ndarray]:
        names = [tensor["name"] for tensor in self.model.io["outputs"]]
        if "logits" in names:
            return super().run(counts)
        results = dict(zip(names, self.session.run(None, {**self._metadata(counts), **self.pages}), strict=True))
        self.pages = {name: results[name.replace(".", "_out.")] for name in self.pages}
        self.adapter.done = [d + n for d, n in zip(self.adapter.done, counts, strict=True)]
        return []


def evaluate(models: list[PluginModel], tensor: int) -> list[list[np.ndarray]]:
    """Logits of every sequence over STEPS, of each rank of the last stage."""
    meeting = Meeting(tensor, len(models) // tensor)
    results: dict[int, Any] = {}

    def work(rank: int) -> None:
        steps = LastOnly(models[rank], evaluator(models[rank].path / MODEL, meeting.of(rank)))
        pieces = [steps.run(counts) for counts in STEPS]
        results[rank] = [np.concatenate([piece[i] for piece in pieces]) for i in range(len(SEQUENCES)) if pieces[0]]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(models)
    return [results[rank] for rank in range(len(models) - tensor, len(models))]


@pytest.mark.parametrize(
    ("variant", "tensor", "stages", "dtype", "quantize"),
    [
        ("llama", 2, 2, "float32", None),
        ("llama", 3, 1, "float32", "int4,embedding=int8"),
        ("gemma3", 2, 1, "bfloat16", None),
        ("falcon_groups", 2, 1, "float32", None),
    ],
)
def test_all_ranks_together(
    case: Any, tmp_path: Path, variant: str, tensor: int, stages: int, dtype: str, quantize: str | None
) -> None:
    made = case(variant)
    graphs = [lower(graph, dtype, quantize) for graph in shared(made.graph, tensor, stages)]
    models = [PluginModel(tmp_path / str(rank), made.checkpoint, graph) for rank, graph in enumerate(graphs)]
    weights = checkpoint_weights(made.checkpoint)
    options: Any = {"steps": STEPS, "block_size": BLOCK}
    together = [narrowed(graph, dtype) for graph in graphs]
    expected = [logits.double().numpy() for logits in interpret_ranks(together, SEQUENCES, weights, **options)[0]]
    results = evaluate(models, tensor)
    for got in results:
        assert all((a == b).all() for a, b in pairs(got, results[0]))
    largest = max(float(np.abs(x).max()) for x in expected)
    if dtype == "float32":
        bound = models[0]._chain(largest)
        assert finite(max(float(np.abs(a - b).max()) for a, b in pairs(results[0], expected))) <= bound
    else:  # a sum of parts that are rounded to the type is rounded once more, which costs no more than rounding does
        plain = interpret_ranks(graphs, SEQUENCES, weights, **options)[0]
        assert finite(rms(results[0], expected)) <= rms(expected, [logits.double().numpy() for logits in plain])


def test_what_ranks_do_together_comes_in_one_order(case: Any, tmp_path: Path) -> None:
    """Each of these nodes reads the result of the one before, so no builder can exchange them."""
    made = case("llama")
    for rank, graph in enumerate(shared(made.graph, 2, 2)):
        PluginModel(tmp_path / str(rank), made.checkpoint, lower(graph, "float32"))
        model = onnx.load(tmp_path / str(rank) / MODEL, load_external_data=False)
        nodes = [node for node in model.graph.node if node.op_type in ("AllReduce", "AllGather", "Send", "Receive")]
        assert len(nodes) >= 4
        for before, after in pairwise(nodes):
            assert after.input[1] == before.output[0]
        assert len(nodes[0].input) == 1


def test_columns_that_ranks_do_not_share_so_are_refused(case: Any, tmp_path: Path) -> None:
    made = case("llama")
    (first, _) = shared(made.graph, 2, 1)
    first.facts.tensor_rank = 1  # its columns are those of the other rank
    with pytest.raises(LoweringError, match="all_gather has other columns than the ranks share"):
        PluginModel(tmp_path, made.checkpoint, lower(first, "float32"))
