"""The records of operations: what is derived from them, and that a new operation needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tensorwright.builder.emit.cpu_plan import BUFFER, HEADER, INSTRUCTION, WEIGHT, emit_cpu_plan
from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir import ops
from tensorwright.ir.graph import SOURCES, Graph
from tensorwright.ir.interpret import interpret
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.records import InPlace, Instruction, Op, cache, metadata, rows, shared
from tensorwright.ir.verify import verify
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.dtypes import Ranges, Tensor
from tensorwright.passes.insert_kv_cache import is_per_token
from tensorwright.passes.lower_to_cpu import lower_to_cpu
from tensorwright.passes.plan_memory import plan_memory
from tensorwright.plugins import op_table
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.registry import read_records

NUMBER = 99


def infer(inputs, attrs):
    return [(inputs[0].dtype, inputs[0].shape)]


def reference(inputs, attrs, act_dtype):
    x, w = inputs
    return [np.maximum(x * w, np.float32(attrs["floor"])).astype(np.float32)]


RAMP = Op(
    "ramp",
    operands=(rows("x"), shared("w")),
    attrs={"floor": "float"},
    infer=infer,
    reference=reference,
    per_token=True,
)
RAMP_INSTRUCTION = Instruction(
    "ramp",
    number=NUMBER,
    operands=(rows("x"), shared("w", RAW)),
    attrs=RAMP.attrs,
    reference=reference,
    in_place=(InPlace("y", ("x",)),),
)


@pytest.fixture
def with_ramp() -> Iterator[None]:
    ops.register_plugins([*read_records(), RAMP, RAMP_INSTRUCTION], PagedCache.empty)
    yield
    ops.register_plugins(read_records(), PagedCache.empty)


CACHED = """\
graph "g" stage cached {
  fact dtype = "float32"
  %token_ids: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %t: float32[5, 4] = weight() {expr = @"t"}
  %w: float32[4] = weight() {expr = @"w"}
  %e: float32[tokens, 4] = embedding(%t, %token_ids) {scale = 1.0}
  %a: float32[tokens, 4] = add(%e, %e)
  %y: float32[tokens, 4] = ramp(%a, %w) {floor = 0.25}
  %z: float32[rows, 4] = gather_rows(%y, %logit_rows)
  return %z
}
"""
TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) - 9
FACTORS = np.array([1, -1, 2, 0.5], np.float32)


class Source:
    """The shapes and types of TABLE and FACTORS."""

    def shape(self, name: str) -> tuple[int, ...]:
        return {"t": TABLE, "w": FACTORS}[name].shape

    def dtype(self, name: str) -> str:
        return "float32"

    def read_part(self, name: str, ranges: Ranges) -> Tensor:
        raise AssertionError("a plan reads no data")


def weights(expr: WeightExpr) -> torch.Tensor:
    return torch.from_numpy({"t": TABLE, "w": FACTORS}[next(expr.refs())])


@pytest.mark.usefixtures("with_ramp")
def test_an_operation_is_its_record() -> None:
    """Verified, pure by row, per token, lowered, in place, stored, interpreted and in the C++ table, by its record."""
    graph = parse_graph(CACHED)
    verify(graph)
    assert is_per_token(graph.find("ramp")[0])
    lowered = graph.clone()
    assert lower_to_cpu(lowered) == 4
    verify(lowered)
    ids = {"token_ids": torch.tensor([3, 1], dtype=torch.int32), "logit_rows": torch.tensor([1, 0], dtype=torch.int32)}
    wanted = np.maximum(2 * TABLE[[1, 3]] * FACTORS, np.float32(0.25))
    for each in (graph, lowered):
        (result,) = interpret(each, ids, weights)
        np.testing.assert_array_equal(result.numpy(), wanted)
    plan_memory(lowered)
    _, added, ramp, _ = (node.attrs["buffers"] for node in lowered.nodes if node.op not in SOURCES)
    assert ramp == added, "y takes the memory of x"
    lowered.facts.update(vocab_size=5, max_seq_len=8, block_size=16, kv_layers=[])
    data = emit_cpu_plan(lowered, Source()).data
    stored = list(INSTRUCTION.iter_unpack(instructions_of(data, lowered)))
    assert [record[0] for record in stored] == [1, 9, NUMBER, 7]
    assert stored[2][-4:] == (0.25, 0, 0, 0)


@pytest.mark.usefixtures("with_ramp")
def test_an_operation_stands_in_the_generated_table() -> None:
    text = op_table.render()
    assert f"kRamp = {NUMBER},  // x | w | y | - | floor" in text
    assert '{Op::kRamp, "ramp", 1, 1, 1, 1, 1, 1, 0, 1, check_ramp, make_ramp},' in text
    assert "{Op::kRamp, 0, 0, -1},  // y over x" in text


def instructions_of(data: bytes, graph: Graph) -> bytes:
    """The bytes behind the header, the buffers and the weights, for all nodes that compute."""
    begin = HEADER.size + BUFFER.size * len(graph.facts.buffers) + WEIGHT.size * len(graph.find("weight"))
    return data[begin : begin + INSTRUCTION.size * sum(node.op not in SOURCES for node in graph.nodes)]


@pytest.mark.usefixtures("with_ramp")
def test_rows_that_an_operation_does_not_take_are_refused() -> None:
    graph = parse_graph(CACHED)
    ramp = graph.find("ramp")[0]
    ramp.inputs[1] = ramp.inputs[0]
    with pytest.raises(GraphError, match=r"operand 1 \(%a\) must be the same for all rows"):
        verify(graph)


def test_two_records_of_one_name_or_number_are_refused() -> None:
    with pytest.raises(ValueError, match="two records are called ramp"):
        ops.register_plugins([RAMP, Op("ramp", (rows("x"),))], PagedCache.empty)
    other = Instruction("other", number=NUMBER, operands=(rows("x"),))
    with pytest.raises(ValueError, match="other and ramp both have the number 99"):
        ops.register_plugins([RAMP_INSTRUCTION, other], PagedCache.empty)
    assert ops.find_spec("ramp", "cached") is None, "a table that is refused changes nothing"


def test_without_the_plugins_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_plugins", None)
    with pytest.raises(RuntimeError, match=r"import tensorwright\.plugins\.registry"):
        ops.find_spec("add", "traced")


def test_counts_follow_from_operands() -> None:
    op = Op(
        "o", (rows("x"), shared("w?"), metadata("slots"), cache("kv"), shared("b?")), results=(rows("y"), rows("s?"))
    )
    assert op.operand_counts == (4, 5)
    assert op.result_counts == (1, 2)
    assert [op.may_lack(i) for i in range(5)] == [False, True, False, False, True]
    instruction = Instruction(
        "i", op.operands, attrs={"n": "int", "word": "str", "text": "str", "eps": "float"}, words={"word": ("a", "b")}
    )
    assert instruction.operand_counts == (5, 5)
    assert (instruction.ints, instruction.floats) == (("n", "word"), ("eps",))
    assert [o.name for o in instruction.ins] == ["x"]
    assert [o.name for o in instruction.weights] == ["w", "b"]
