"""Building and splicing: types, names, order, and what is left over."""

import pytest

from support.pass_graphs import graph_of, ops
from tensorwright.errors import GraphError
from tensorwright.ir.verify import verify
from tensorwright.passes.rewriting.rewriter import Rewriter, sort_nodes, splice

BODY = """
  %x: float32[1, seq, 4] = input()
  %a: float32[1, seq, 4] = neg(%x)
  %b: float32[1, seq, 4] = exp(%a)
  return %b
"""


def test_types_are_inferred_and_the_scope_is_the_root_s():
    graph = graph_of(BODY.replace("exp(%a)", "exp(%a) in here"))
    g = Rewriter(graph, graph.value("b").node)
    view = g.view(graph.value("x"), shape=("seq", 4))
    assert (view.dtype, view.shape, view.node.scope) == ("float32", ("seq", 4), "here")
    y, total = g.add_rms_norm(view, view, g.constant(1.0, "float32", [4]), eps=1e-5, weight_offset=0.0)
    assert total.shape == ("seq", 4)
    with pytest.raises(GraphError):
        g.view(y, shape=(3, 5))


def test_splice_follows_chains_and_drops_what_died():
    graph = graph_of(BODY)
    a, b = graph.value("a"), graph.value("b")
    first, second = Rewriter(graph, a.node), Rewriter(graph, b.node)
    new_a = first.tanh(graph.value("x"))
    new_b = second.sigmoid(a)  # still the old value: splice sends it on
    splice(graph, {id(a.node): first.nodes, id(b.node): second.nodes}, {a: new_a, b: new_b})
    verify(graph, "traced")
    assert ops(graph) == ["tanh", "sigmoid"]
    assert graph.outputs[0].node.inputs[0] is new_a


def test_sorting_is_stable():
    graph = graph_of(BODY)
    before = list(graph.nodes)
    sort_nodes(graph)
    assert graph.nodes == before
    graph.nodes.reverse()
    sort_nodes(graph)
    verify(graph, "traced")
