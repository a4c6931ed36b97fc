"""The tree of a launch.py, evaluated at the sizes of a step, is what the launch.py makes of these sizes directly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import pytest

from support.cuda_model import wide_enough
from support.cuda_plan import evaluate
from support.plugin_form import lower
from tensorwright.builder.emit.cuda.addresses import SLOT, WEIGHT, WORKSPACE, Address
from tensorwright.builder.emit.cuda.calls import OpCall, address_of
from tensorwright.builder.emit.cuda.emit import plan_graph
from tensorwright.builder.emit.cuda.plan_calls import Planner
from tensorwright.builder.emit.cuda.plan_file import ABSENT, INTEGER, Argument, Product
from tensorwright.builder.emit.cuda.sizes import Expressions, Size, Variable
from tensorwright.builder.emit.cuda.trace_launches import Branch, Leaf
from tensorwright.plugins.gpu.launch import DenseProduct, Launch, Tensor
from tensorwright.plugins.quantized_matmul import dense_launch as weight_only

MAX_STEP = (8192, 768, 256)
LONG = 32768
STEPS = tuple(itertools.product((1, 2, 16, 17, 64, 65, 1000, 8192), (0, 1, 255, 768), (1, 2, 256)))
"""Tokens, rows and sequences."""
PAGES = ((1, 3), (16, 17), (33, 4000), (1024, 70000))
"""Columns of the block tables, and blocks of the pools."""


def assert_trees_equal_launches(
    expressions: Expressions, calls: Sequence[OpCall], slots: tuple[int, ...], steps: Sequence[list[int]], sm: int
) -> set[int]:
    """Returns the numbers of launches that were met."""
    planner, met = Planner(expressions, slots, sm), set()
    for call in calls:
        nodes = planner.instruction(call).nodes
        for values in steps:
            node = nodes[0]
            while isinstance(node, Branch):
                node = nodes[node.if_true if evaluate(expressions.items, node.condition, values) else node.if_false]
            assert isinstance(node, Leaf), f"{call.text} at {values}: {node.why}"
            got = [_valued(expressions, planner, launch, values) for launch in node.launches]
            assert got == _direct(expressions, slots, call, values, sm), f"{call.text} at {values}"
            met.add(len(got))
    return met


def _valued(expressions: Expressions, planner: Planner, launch: Any, values: list[int]) -> tuple:
    def known(arg: Argument) -> Argument:
        return replace(arg, a=evaluate(expressions.items, arg.a, values)) if arg.kind == INTEGER else arg

    if isinstance(launch, Product):
        return astuple(replace(launch, m=evaluate(expressions.items, launch.m, values)))
    spec = list(planner.specs)[launch.kernel]
    grid = tuple(evaluate(expressions.items, size, values) for size in launch.grid)
    return spec.kernel, spec.variant, grid, tuple(known(arg) for arg in launch.args)


def _direct(expressions: Expressions, slots: tuple[int, ...], call: OpCall, values: list[int], sm: int) -> list[tuple]:
    """What the launch.py makes of plain integers."""

    def plain(tensor: Tensor) -> Tensor:
        def known(size: Any) -> int:
            return evaluate(expressions.items, size.number, values) if isinstance(size, Size) else size

        address: Any = address_of(tensor)
        if address.kind == SLOT:
            address = replace(address, number=slots[address.number])
        strides = tuple(known(stride) for stride in tensor.strides)
        return replace(tensor, address=address, shape=tuple(known(size) for size in tensor.shape), strides=strides)

    inputs = {name: plain(tensor) for name, tensor in call.inputs.items()}
    outputs = {name: plain(tensor) for name, tensor in call.outputs.items()}
    at: Any = Address(WORKSPACE)
    workspace = Tensor.dense("workspace", at, (call.workspace // 4,), "float32") if call.workspace else None
    made = call.module.launches(call.attrs, inputs, outputs, workspace, sm)
    return [_product(one) if isinstance(one, DenseProduct) else _launch(one) for one in made]


def _launch(one: Launch) -> tuple:
    return one.kernel, one.variant, one.grid, tuple(_argument(arg) for arg in one.args)


def _product(one: DenseProduct) -> tuple:
    operands = (one.x, one.w, one.bias, one.residual, one.y)
    args = tuple(Argument(ABSENT) if tensor is None else _argument(tensor) for tensor in operands)
    (m, _), (n, k) = one.x.shape, one.w.shape
    return astuple(Product(m, n, k, one.y.strides[0], one.w.dtype, one.y.dtype, args))


def _argument(value: Any) -> Argument:
    if isinstance(value, Tensor):
        address = address_of(value)
        return Argument(address.kind, address.number, float(address.offset))
    return Argument(6, 0, value) if isinstance(value, float) else Argument(INTEGER, value)


@pytest.mark.parametrize(
    ("variant", "kv"),
    [
        ("gemma2", "auto"), ("qwen3", "int8"), ("qwen3", "fp8"), ("gpt2", "auto"),
        ("stablelm_head_norms", "auto"), ("minicpm3", "auto"),
        ("falcon_h1", "auto"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sm", [80, 90])
def test_every_call_of_a_model(case, variant: str, kv: str, sm: int) -> None:
    made = case(variant, **wide_enough(variant))
    graph = lower(made.graph, "bfloat16", None, kv, block=32, target="cuda")
    graph.facts.max_seq_len = LONG
    planned = plan_graph(graph, made.checkpoint, "bfloat16", MAX_STEP)
    groups = len(planned.emitter.groups)
    calls = [call for call in planned.emitter.calls if isinstance(call, OpCall)]
    steps = [[*step, *[table] * groups, *[pool] * groups] for step in STEPS for table, pool in PAGES]
    steps = [step for step in steps if step[0] >= step[2] and step[1] <= step[0]]
    met = assert_trees_equal_launches(planned.emitter.expressions, calls, planned.slot_of, steps, sm)
    # A prefill, a decode and its sum, but one kernel for both over latents; four that draw tokens; and nothing for no
    # rows of logits.
    assert met == ({0, 1, 2, 4} if variant == "minicpm3" else {0, 1, 2, 3, 4})


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("sm", [80, 90])
def test_products_of_int4_with_split_sums(dtype: str, sm: int) -> None:
    expressions = Expressions((Variable("tokens", 1, 8192),))
    tokens: Any = expressions.variable(0)
    n, k, group = 8192, 4096, 64

    def tensor(name: str, kind: int, number: int, shape: tuple, of: str) -> Tensor:
        address: Any = Address(kind, number)
        return Tensor.dense(name, address, shape, of)

    inputs = {
        "x": tensor("x", SLOT, 0, (tokens, k), dtype),
        "packed": tensor("packed", WEIGHT, 0, (k // 8, n), "int32"),
        "scales": tensor("scales", WEIGHT, 1, (k // group, n), dtype),
    }
    outputs = {"y": tensor("y", SLOT, 1, (tokens, n), dtype)}
    attrs = {"n": n, "k": k, "group": group}
    workspace = weight_only.workspace_bytes(attrs, {"x": (8192, k)})
    call = OpCall("int4", weight_only, attrs, inputs, outputs, workspace)
    sizes = [[count] for count in (*range(1, 150), 192, 200, 256, 257, 1000, 4096, 8192)]
    assert assert_trees_equal_launches(expressions, [call], (0, 1), sizes, sm) == {1, 2}
