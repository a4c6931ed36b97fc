"""Products add what the graph adds to them, where nothing else reads them: then no kernel does."""

from __future__ import annotations

from typing import Any

import pytest

from support.cuda_model import MAX_STEP, wide_enough
from support.plugin_form import lower
from tensorwright.builder.emit.cuda.calls import OpCall, ProductCall, address_of
from tensorwright.builder.emit.cuda.emit import PlannedGraph, plan_graph
from tensorwright.plugins.elementwise import launch as elementwise


def planned(case: Any, variant: str, quantize: str | None = None) -> PlannedGraph:
    made = case(variant, num_hidden_layers=2, **wide_enough(variant))
    graph = lower(made.graph, "bfloat16", quantize, block=32, target="cuda")
    return plan_graph(graph, made.checkpoint, "bfloat16", MAX_STEP)


@pytest.mark.parametrize(
    ("variant", "quantize", "in_products", "in_norms", "in_kernels"),
    [
        ("llama", None, 3, 1, 0),
        ("gpt2", None, 3, 2, 0),  # a norm adds the embeddings of tokens and of positions
        ("cohere", None, 3, 1, 0),  # both branches read one norm
        ("gemma2", None, 0, 4, 0),  # what is added is normalised first
        ("llama", "int4", 0, 4, 0),
    ],
)
def test_who_adds(case, variant: str, quantize: str | None, in_products: int, in_norms: int, in_kernels: int) -> None:
    """Of two layers' four sums. The last one is of the rows whose logits are wanted, gathered before."""
    calls = planned(case, variant, quantize).emitter.calls
    products = [call.product for call in calls if isinstance(call, ProductCall)]
    others = [call for call in calls if isinstance(call, OpCall)]
    assert sum(product.residual is not None for product in products) == in_products
    assert sum("residual" in call.inputs for call in others) == in_norms
    adding = [call for call in others if call.module is elementwise and "add" in call.attrs["program"].split()]
    assert len(adding) == in_kernels


def test_what_is_added_is_there_before_and_stays_until_then(case) -> None:
    """A residual is written before the product that adds it, its slot is nobody else's meanwhile, nor the result's."""
    plan = planned(case, "llama")
    written: dict[int, int] = {}
    for call in plan.emitter.calls:
        results = call.outputs.values() if isinstance(call, OpCall) else [call.product.y]
        if isinstance(call, ProductCall) and call.product.residual is not None:
            residual, result = (address_of(t).number for t in (call.product.residual, call.product.y))
            assert written[plan.slot_of[residual]] == residual
            assert plan.slot_of[residual] != plan.slot_of[result]
        for tensor in results:
            if address_of(tensor).kind == 0:
                written[plan.slot_of[address_of(tensor).number]] = address_of(tensor).number
