"""The tracer's handlers of what only some models write: lists as indices, changes in place, numpy's transpose."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensorwright.builder.trace.export import _IndexListsOnCpu
from tensorwright.builder.trace.lower_aten import TABLE
from tensorwright.builder.trace.lower_fx import lower
from tensorwright.errors import TraceError
from tensorwright.ir.graph import Graph
from tensorwright.ir.interpret import interpret


class Traced(nn.Module):
    """A function of one [1, seq, 6] tensor, exported as models are."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        with _IndexListsOnCpu():
            return self.function(x)


def graph_of(function):
    seq = torch.export.Dim("seq", min=2, max=64)
    x = torch.zeros(1, 7, 6, device="meta")
    program = torch.export.export(Traced(function), (x,), dynamic_shapes=({1: seq},), strict=False)
    graph = Graph("test", "traced")
    lower(program, {}, graph, TABLE)
    return graph


def assert_same(function, ops):
    graph = graph_of(function)
    assert [n.op for n in graph.nodes if n.op not in ("input", "constant")] == ops
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    expected = function(x.clone())
    (result,) = interpret(graph, {graph.inputs[0].name: x}, lambda expr: None)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("index", [[0], [-2], [1, 2, 3], [-3, -2, -1]])
def test_a_list_of_neighbours_is_a_slice(index):
    assert_same(lambda x: x[:, :, index], ["slice"])


@pytest.mark.parametrize("index", [[2, 0], [0, 0], [0, 2]])
def test_any_other_list_keeps_its_numbers(index):
    assert_same(lambda x: x[:, :, index], ["index"])


def test_all_of_a_dimension_is_no_slice():
    assert_same(lambda x: -x[:, :, [0, 1, 2, 3, 4, 5]], ["neg"])


def change_sums(x):
    y = x * 2.0
    y += x
    y /= 3.0
    y -= 1.0
    y *= x
    return y


def test_changes_in_place_of_fresh_values():
    assert_same(change_sums, ["mul", "add", "div", "sub", "mul"])


def read_again(x):
    y = x * 2.0
    z = y.transpose(1, 2)
    y += 1.0
    return y + z.transpose(1, 2)


def change_view(x):
    y = x * 2.0
    y[:, :, 1:3].add_(1.0)
    return y


def change_input(x):
    x += 1.0
    return x * 2.0


@pytest.mark.parametrize("function", [read_again, change_view, change_input])
def test_changes_that_others_see_are_refused(function):
    with pytest.raises(TraceError, match=r"aten.add_.Tensor .* changes in place what others may read"):
        graph_of(function)


def test_numpy_transpose():
    assert_same(
        lambda x: (x.squeeze(0).T * 1.0).T.unsqueeze(0), ["squeeze", "transpose", "mul", "transpose", "unsqueeze"]
    )
