"""The tracer's handlers of what only some models write: lists as indices, changes in place, numpy's transpose."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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
        return self.function(x)


def graph_of(function):
    seq = torch.export.Dim("seq", min=2, max=64)
    x = torch.zeros(1, 7, 6)
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


def change_by_statements(x):
    """Readers after the changes name the tensor that was changed, not the changes."""
    y = x * 2.0
    y.add_(x)
    z = y.mul_(3.0)
    y.sub_(1.0)
    return y * z


def test_changes_in_place_that_are_read_by_the_first_name():
    assert_same(change_by_statements, ["mul", "add", "mul", "sub", "mul"])


def mark_some(x):
    y = x.clone()
    y[x > 0.5] = 0.25
    return y - x


def test_a_number_where_a_mask_is_set():
    assert_same(mark_some, ["gt", "where", "sub"])


def mark_columns(x):
    y = x.clone()
    y[:, :, torch.tensor([1, 3])] = 0.0
    return y


def test_other_values_in_places_are_refused():
    with pytest.raises(TraceError, match="puts other values than one number where a mask of the same shape is set"):
        graph_of(mark_columns)


def test_a_change_of_rows_of_a_table():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Buffer(torch.randn(9, 6, generator=torch.Generator().manual_seed(2)))

        def forward(self, ids):
            rows = nn.functional.embedding(ids, self.table)
            rows += 1.0
            return rows

    seq = torch.export.Dim("seq", min=2, max=64)
    program = torch.export.export(
        Embedded(), (torch.zeros(1, 7, dtype=torch.int64),), dynamic_shapes=({1: seq},), strict=False
    )
    graph = Graph("test", "traced")
    lower(program, {}, graph, TABLE)
    ids = torch.tensor([[3, 1, 4]])
    (result,) = interpret(graph, {graph.inputs[0].name: ids}, lambda expr: None)
    assert torch.equal(result, Embedded()(ids))


def normalise_best(x):
    """As routers of experts write it: the sum is read before the change."""
    best, places = torch.topk(x, 2, dim=-1)
    best /= best.sum(dim=-1, keepdim=True)
    return best * places


def test_changes_in_place_after_the_last_other_reader():
    assert_same(normalise_best, ["topk", "sum", "div", "mul"])


@pytest.mark.parametrize("keepdim", [True, False])
def test_a_norm_of_order_1_is_a_sum_of_absolute_values(keepdim):
    """torch adds them in another order, which whole numbers do not show."""
    graph = graph_of(lambda x: torch.norm(x, p=1, dim=-1, keepdim=keepdim))
    assert [n.op for n in graph.nodes if n.op != "input"] == ["abs", "sum"]
    x = torch.arange(-10.0, 20.0).reshape(1, 5, 6)
    (result,) = interpret(graph, {graph.inputs[0].name: x}, lambda expr: None)
    assert torch.equal(result, torch.norm(x, p=1, dim=-1, keepdim=keepdim))


def test_norms_of_other_orders_are_refused():
    with pytest.raises(TraceError, match="is of order 2; only 1 has a meaning"):
        graph_of(lambda x: torch.norm(x, p=2, dim=-1))


def test_of_equal_elements_topk_takes_the_lowest_place():
    graph = graph_of(lambda x: torch.topk(x, 4, dim=-1)[1])
    (result,) = interpret(graph, {graph.inputs[0].name: torch.tensor([[[1.0, 3, 3, 1, 1, 3]] * 2])}, lambda expr: None)
    assert result.tolist() == [[[1, 2, 5, 0]] * 2]


def test_the_smallest_are_refused():
    with pytest.raises(TraceError, match="takes the smallest; only the largest"):
        graph_of(lambda x: torch.topk(x, 2, dim=-1, largest=False)[0])


def scale_rows(x):
    """As CTRL writes it: the rows that were picked are nobody else's."""
    rows = torch.nn.functional.embedding(torch.tensor([[1, 0, 2]]), x[0])
    rows *= 3.0
    return rows


def test_changes_in_place_of_picked_rows():
    assert_same(scale_rows, ["select", "embedding", "mul"])


def add_to_picked_rows(x):
    """As Kosmos-2.5 writes it: nobody else reads the rows under their views."""
    rows = x[0].index_select(0, torch.tensor([1, 0, 2])).view(1, 3, 6).detach()
    rows += 1.0
    return rows


def test_changes_in_place_of_views_of_picked_rows():
    assert_same(add_to_picked_rows, ["select", "index", "view", "add"])


def test_picked_rows():
    places = torch.tensor([3, 0, 3])
    assert_same(lambda x: x[0].index_select(0, places), ["select", "index"])


def test_picked_columns_are_refused():
    with pytest.raises(TraceError, match="picks from another dimension than the first"):
        graph_of(lambda x: x.index_select(2, torch.tensor([3, 0])))


def test_the_larger_and_the_smaller_of_two():
    assert_same(lambda x: torch.max(x, x * x) + torch.min(x, -x), ["mul", "maximum", "neg", "minimum", "add"])


def test_an_exponential_less_one():
    assert_same(torch.expm1, ["expm1"])


def read_between(x):
    y = x * 2.0
    z = y.transpose(1, 2)
    y /= y.sum(dim=-1, keepdim=True)
    return y + z.transpose(1, 2)


def read_again(x):
    y = x * 2.0
    z = y.transpose(1, 2)
    y += 1.0
    return y + z.transpose(1, 2)


def change_view(x):
    y = x * 2.0
    y[:, :, 1:3].add_(1.0)
    return y


def change_under_view(x):
    y = x * 2.0
    z = y.view(1, -1, 2, 3)
    z += 1.0
    return y + 1.0


def change_input(x):
    x += 1.0
    return x * 2.0


@pytest.mark.parametrize("function", [read_again, read_between, change_view, change_under_view, change_input])
def test_changes_that_others_see_are_refused(function):
    with pytest.raises(TraceError, match=r"aten.(add|div)_.Tensor .* changes in place what others may read"):
        graph_of(function)


def test_numpy_transpose():
    assert_same(
        lambda x: (x.squeeze(0).T * 1.0).T.unsqueeze(0), ["squeeze", "transpose", "mul", "transpose", "unsqueeze"]
    )


@pytest.mark.parametrize(
    ("counts", "ops"),
    [
        ((1, 1, 1), []),
        ((1, 1, 2), ["concat"]),
        ((3, 1, 1), ["expand"]),
        ((2, 1, 1, 1), ["view", "expand"]),
        ((2, 1, 1, 3), ["view", "expand", "concat"]),
    ],
)
def test_repeat(counts, ops):
    assert_same(lambda x: -x.repeat(*counts), [*ops, "neg"])


def test_a_gather_of_whole_rows_is_an_index():
    def rows(x):
        numbers = (x[:, :, :1] > 0).long()
        return torch.gather(x, 1, numbers.repeat(1, 1, 6))

    assert graph_of(rows).nodes[-1].op == "index"
    assert_same(rows, [n.op for n in graph_of(rows).nodes if n.op not in ("input", "constant")])


def filled(x):
    whole = x.new_empty(1, x.shape[1], 8)
    whole[:, :, :6].copy_(x)
    whole[:, :, 6:].copy_(x[:, :, 1:3])
    return -whole


def filled_in_part(x):
    whole = x.new_empty(1, x.shape[1], 8)
    whole[:, :, :6].copy_(x)
    return -whole


def filled_by_repeating(x):
    whole = x.new_empty(1, x.shape[1], 8)
    whole[:, :, :6].copy_(x)
    whole[:, :, 6:].copy_(x[:, :, :1])
    return -whole


def test_a_tensor_that_is_filled_part_by_part_is_a_concatenation():
    assert_same(filled, ["slice", "concat", "neg"])


@pytest.mark.parametrize("function", [filled_in_part, filled_by_repeating])
def test_a_tensor_that_is_filled_otherwise_is_refused(function):
    with pytest.raises(TraceError, match=r"aten.new_empty.default .* has no meaning here"):
        graph_of(function)


def convolved(x, *, padding=2, groups=6, part=None):
    """Convolves the rows of x, and returns a part of what comes of it: the first outputs, one for each input."""
    weight = torch.arange(18 if groups == 6 else 108).float().reshape(6, -1, 3) / 8
    y = nn.functional.conv1d(x.transpose(1, 2), weight, None, padding=padding, groups=groups)
    return (y[..., : x.shape[1]] if part is None else part(y, x)).transpose(1, 2)


def test_first_outputs_of_a_convolution_are_causal():
    graph = graph_of(convolved)
    assert len(graph.find("causal_conv")) == 1
    assert not graph.find("slice")
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    (result,) = interpret(graph, {graph.inputs[0].name: x}, lambda expr: None)
    torch.testing.assert_close(result, convolved(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"part": lambda y, x: y[..., 2:]},
        {"part": lambda y, x: y},
        {"padding": 1, "part": lambda y, x: y},
        {"groups": 1},
    ],
    ids=["the last outputs", "all outputs", "both neighbours", "channels together"],
)
def test_other_convolutions_are_refused(options):
    with pytest.raises(TraceError, match="is no causal convolution of each channel on its own"):
        graph_of(lambda x: convolved(x, **options))


def test_complex_numbers_are_pairs():
    """The sums are torch's own up to the order of their terms; cosine and sine are not."""

    def turned(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 3, 2))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(x[..., :3]), x[..., 3:]) * 2.0).flatten(2)

    graph = graph_of(turned)
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    (result,) = interpret(graph, {graph.inputs[0].name: x}, lambda expr: None)
    expected = turned(x.double())
    assert float((result - expected).abs().max()) <= 16 * 2.0**-24 * float(expected.abs().max())


def test_what_complex_numbers_have_no_pair_for_is_refused():
    with pytest.raises(TraceError):
        graph_of(lambda x: torch.view_as_complex(x.reshape(*x.shape[:-1], 3, 2)).abs())


def test_a_gather_of_single_elements_is_a_gather():
    def elements(x):
        return torch.gather(x, 1, (x > 0).long())

    assert graph_of(elements).nodes[-1].op == "gather"
    assert_same(elements, ["gt", "cast", "gather"])


def mark_best(x):
    """As routers mark groups of experts: in place, on fresh zeros."""
    marks = torch.zeros_like(x)
    marks.scatter_(2, torch.topk(x, 2, dim=-1, sorted=False)[1], 1)
    return marks


def test_marks_in_fresh_zeros():
    assert_same(mark_best, ["full", "topk", "scatter"])


def test_a_maximum_and_its_place_are_a_topk():
    assert_same(lambda x: x.max(dim=-1).values, ["amax"])

    def both(x):
        largest, place = x.max(dim=-1, keepdim=True)
        return largest * place

    assert "topk" in [node.op for node in graph_of(both).nodes]


@pytest.mark.parametrize(("keepdim", "ops"), [(True, []), (False, ["view"])])
def test_the_logarithm_of_a_sum_of_exponentials(keepdim, ops):
    def function(x):
        return torch.logsumexp(200.0 * x, dim=-1, keepdim=keepdim)

    graph = graph_of(function)
    steps = ["mul", "amax", "sub", "exp", "sum", "log", "add", *ops]
    assert [n.op for n in graph.nodes if n.op not in ("input", "constant")] == steps
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    (result,) = interpret(graph, {graph.inputs[0].name: x}, lambda expr: None)
    expected = function(x)
    assert result.shape == expected.shape
    assert float((result - expected).abs().max()) <= 4 * torch.finfo(torch.float32).eps * float(expected.abs().max())


def test_floors():
    assert_same(lambda x: torch.floor(10.0 * x), ["mul", "floor_div"])


def test_a_view_as_another_tensor():
    assert_same(lambda x: x[:, :, :3].view_as(x[:, :, 3:]) + x[:, :, 3:], ["slice", "slice", "add"])


def test_a_logarithm_of_one_and_more():
    graph = graph_of(lambda x: torch.log1p(x * x))
    assert [n.op for n in graph.nodes if n.op not in ("input", "constant")] == ["mul", "add", "log"]
    x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(1))
    (result,) = interpret(graph, {graph.inputs[0].name: x}, lambda expr: None)
    assert float((result - torch.log1p(x * x)).abs().max()) <= 2 * torch.finfo(torch.float32).eps
