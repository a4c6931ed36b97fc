"""lower_weight_only:  quantized_linear(x, w, b?){format}  ->  weight_only_linear(x, w, b?){format},  and likewise
quantized_experts and quantized_head_products

T tokens, K inner, N outer.  x: [T, K], w: [N, K].  This pass is for targets whose products keep activations (all but
cpu): the weights are rounded alike, but x is not rounded to integers. Their embedding has rows of int8.

With the fact "activations" = "int8", which target onnx allows, all stay: x is rounded as the weights are. Linears of
w8a8, which is the rounding of both, stay on targets that have a kernel for it (`keep_rounded`); others refuse it.

This pass is the last one of these targets. Their emitters follow.
"""

from __future__ import annotations

from tensorwright.engine_format.weight_formats import W8A8
from tensorwright.errors import LoweringError, UnsupportedModelError
from tensorwright.ir import Graph, Node, Value
from tensorwright.passes.rewriting.explain import located
from tensorwright.passes.rewriting.matcher import describe
from tensorwright.passes.rewriting.rewriter import make_node, splice

ROUNDED, KEPT = "quantized_", "weight_only_"
"""The beginnings of the names of products that round x, and of those that do not."""
PRODUCTS = ("linear", "experts", "head_products")


def lower_weight_only(graph: Graph, *, keep_rounded: bool = False) -> int:
    """Returns how many products were rewritten. keep_rounded: linears of w8a8 stay.

    Raises LoweringError for a format that rounds activations, unless it stays, and UnsupportedModelError for matrices
    that must stay float32 beside narrower activations.
    """
    if graph.facts.wide and graph.facts.dtype != "float32":
        raise UnsupportedModelError(
            f"{graph.facts.model_type} keeps {len(graph.facts.wide)} matrices in float32 when run in "
            f"{graph.facts.dtype}, {graph.facts.wide[0]} for one, which only target cpu does; build for that, or with "
            'dtype="float32"'
        )
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op == "quantized_embedding" and node.attrs["format"].dtype != "int8":
            raise refusal(graph, node, "must have rows of int8 or of the activation type here")
        product = node.op.removeprefix(ROUNDED)
        if node.op != f"{ROUNDED}{product}" or product not in PRODUCTS:
            continue
        if node.attrs["format"] == W8A8 and keep_rounded and product == "linear":
            continue
        if node.attrs["format"] == W8A8:
            raise refusal(graph, node, "rounds its activations, and only weights can be rounded here; use int8")
        if graph.facts.activations == "int8":
            continue
        kind = (node.output.dtype, node.output.shape)
        new = make_node(graph, f"{KEPT}{product}", node.inputs, dict(node.attrs), [kind], node.scope)
        inserted[id(node)] = [new]
        forward[node.output] = new.output
    splice(graph, inserted, forward)
    return len(forward)


def lower_but_rounded(graph: Graph) -> int:
    """Does the same for target cuda, which has products of w8a8."""
    return lower_weight_only(graph, keep_rounded=True)


def refusal(graph: Graph, node: Node, why: str) -> LoweringError:
    what = f"{describe(node.outputs[0])} of format {node.attrs['format']}"
    return LoweringError(located(graph, node, f"lower_weight_only: {what} {why}"))
