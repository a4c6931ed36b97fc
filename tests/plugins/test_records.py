"""The records of operations: what is derived from them, and that a new operation needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from support.pass_graphs import graph_of
from tensorwright.builder.emit.cpu_plan import INSTRUCTION, emit_cpu_plan
from tensorwright.errors import GraphError
from tensorwright.ir import ops
from tensorwright.ir.graph import Graph
from tensorwright.ir.interpret import run
from tensorwright.ir.records import InPlace, Instruction, Op, cache, metadata, rows, shared
from tensorwright.ir.verify import verify
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
    operands=(rows("x"), shared("w", "raw")),
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
  %x: float32[tokens, 4] = input()
  %w: float32[4] = weight() {expr = @"w"}
  %a: float32[tokens, 4] = add(%x, %x)
  %y: float32[tokens, 4] = ramp(%a, %w) {floor = 0.25}
  %r: int32[rows] = input()
  %z: float32[rows, 4] = gather_rows(%y, %r)
  return %z
}
"""


class Source:
    """One vector w."""

    def shape(self, name: str) -> tuple[int, ...]:
        return (4,)

    def dtype(self, name: str) -> str:
        return "float32"

    def read(self, name: str) -> None:
        raise AssertionError("a plan reads no data")


def cached() -> Graph:
    return graph_of(CACHED)


@pytest.mark.usefixtures("with_ramp")
def test_an_operation_is_its_record() -> None:
    """Verified, pure by row, per token, lowered, in place, stored, interpreted and in the C++ table, by its record."""
    graph = cached()
    assert is_per_token(graph.find("ramp")[0])
    x, w = np.arange(8, dtype=np.float32).reshape(2, 4) - 4, np.array([1, -1, 2, 0.5], np.float32)
    inputs = {"x": torch.from_numpy(x), "r": torch.tensor([1, 0], dtype=torch.int32)}
    wanted = np.maximum((x + x) * w, 0.25)[[1, 0]]
    lowered = graph.clone()
    assert lower_to_cpu(lowered) == 3
    verify(lowered)
    for each in (graph, lowered):
        found = {value.name: data for value, data in run(each, inputs, lambda expr: torch.from_numpy(w))}
        np.testing.assert_array_equal(found[each.outputs[0].name].numpy(), wanted)
    plan_memory(lowered)
    add, ramp, _ = (node.attrs["buffers"] for node in lowered.nodes if node.op not in ops.SOURCES)
    assert ramp == add, "y takes the memory of x"
    lowered.facts |= {"vocab_size": 4, "max_seq_len": 8, "block_size": 16, "kv_layers": []}
    data = emit_cpu_plan(lowered, Source()).data
    stored = [record for record in INSTRUCTION.iter_unpack(data[instructions_at(data) : instructions_at(data) + 3 * 88])]
    assert stored[1][0] == NUMBER
    assert stored[1][-4] == 0.25
    text = op_table.render()
    assert f"kRamp = {NUMBER},  // x | w | y | - | floor" in text
    assert '{Op::kRamp, "ramp", 1, 1, 1, 1, 1, 1, 0, 1, check_ramp, make_ramp},' in text
    assert "{Op::kRamp, 0, 0, -1},  // y over x" in text


def instructions_at(data: bytes) -> int:
    """Where the instructions of this plan begin: behind the header, 2 buffers and 1 weight."""
    return 96 + 2 * 24 + 40


@pytest.mark.usefixtures("with_ramp")
def test_rows_that_an_operation_does_not_take_are_refused() -> None:
    graph = cached()
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
    op = Op("o", (rows("x"), shared("w?"), metadata("slots"), cache("kv"), shared("b?")), results=(rows("y"), rows("s?")))
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
