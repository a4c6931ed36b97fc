"""shard_tensors:  linear(f(linear(x, A)), B)  ->  all_reduce(linear(f(linear(x, A of this rank)), B of this rank))

The ranks of a stage share every layer. Where a linear reads columns, or heads, that other linears make alone (f is
attention with its cache, a recurrence with its state, a gate, an activation), each rank computes some of them: it has
the rows of A that make them, the columns of B that read them, and the part of the cache or of the state that they need.
The products of all ranks are summed (Megatron-LM, Shoeybi et al. 2019, section 3). A mixture of experts is shared so
within every expert; if the fact expert_parallel says so, each rank has some experts whole instead (Lepikhin et al.
2020, "GShard"). The sum of two all_reduces is one of the sum. The first rank adds the bias of B.

What cannot be shared stays whole, and every rank computes it: routers, projections into latents, and what narrow
layers have fewer columns of than there are ranks. The fact left_whole names it.

The facts tensor_parallel and tensor_rank say who shares; with one rank nothing is rewritten.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate

from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.ops import elements_of
from tensorwright.passes.rewriting.cut import cut, cut_columns, shifted
from tensorwright.passes.rewriting.narrow import Narrowing, Undivided
from tensorwright.passes.rewriting.narrow_rules import RULES
from tensorwright.passes.rewriting.rewriter import Rewriter, make_node, splice
from tensorwright.plugins.experts.gate import DEFAULTS


def shard_tensors(graph: Graph) -> int:
    """Returns how many products were shared.

    Raises InvalidOptionError for more ranks than heads, and UnsupportedModelError for a cache that one layer could
    share and another layer, which reads it, could not.
    """
    if graph.facts.tensor_parallel == 1 or graph.find("all_reduce"):
        return 0
    check_ranks(graph)
    sharing = Sharing(graph)
    sharing.share_products()
    _require_one_cut(graph, sharing.narrowing)
    _require_one_state(graph)
    parts = sharing.narrowing.parts
    graph.facts.kv_layers = [
        replace(layer, kv_heads=parts.kv_heads.get(i, layer.kv_heads)) for i, layer in enumerate(graph.facts.kv_layers)
    ]
    graph.facts.state_layers = [parts.states.get(i, layer) for i, layer in enumerate(graph.facts.state_layers)]
    graph.facts.left_whole = [
        f"{node.scope}: {sharing.whole[id(node)]}" for node in graph.nodes if id(node) in sharing.whole
    ]
    _join_sums(graph)
    _join_siblings(graph, sharing.plain)
    return sharing.count


class Sharing:
    """Shares the products of a graph.

    count: how many were shared. whole: why the others were not, by the id of their nodes. plain: the sums of products
    that have no bias.
    """

    def __init__(self, graph: Graph):
        self.graph, self.narrowing = graph, Narrowing(graph, RULES)
        self.count = 0
        self.whole: dict[int, str] = {}
        self.plain: set[Value] = set()

    def share_products(self) -> None:
        """Goes from the last product to the first: each takes the rows of those that it reads, which are then gone. A
        product that takes more than it shares waits until the others are done."""
        products = [n for n in self.graph.nodes if n.op in PARTS and n.output.shape[0] == "tokens"][::-1]
        waiting = [node for node in products if self.share(node, may_wait=True) == "waits"]
        for node in waiting:
            self.share(node)

    def share(self, node: Node, may_wait: bool = False) -> str:
        """Returns what became of a product: "gone", "waits", "whole" or "shared"."""
        if not any(node is other for other in self.graph.nodes):
            return "gone"
        before = self.narrowing.parts.copy()
        try:
            part, made = _attempt(self.narrowing, node)
        except Undivided as reason:
            self.whole[id(node)] = str(reason)
            return "whole"
        if may_wait and _takes_more_than_it_shares(self.narrowing, node):
            self.narrowing.parts = before
            return "waits"
        kind = (node.output.dtype, node.output.shape)
        total = make_node(self.graph, "all_reduce", [part], {}, [kind], node.scope, node.output.name)
        splice(self.graph, {id(node): [*made, total]}, {node.output: total.output})
        if node.op == "linear" and node.optional(2) is None:
            self.plain.add(total.output)
        self.count += 1
        return "shared"


def _attempt(narrowing: Narrowing, node: Node) -> tuple[Value, list[Node]]:
    return narrowing.attempt(partial(PARTS[node.op], narrowing, node))


def _takes_more_than_it_shares(narrowing: Narrowing, node: Node) -> bool:
    """Returns whether a product that the last attempt narrowed, for `node`, would share more weights by a sum of its
    own: of C(B(f(A(x)))) with a small C, the ranks share A and B. All ranks decide alike, by the whole matrices."""
    taken = narrowing.products
    shared = elements_of(node) + sum(map(elements_of, taken))
    parts = narrowing.parts
    for other in taken:
        narrowing.parts = parts.copy()
        try:
            _attempt(narrowing, other)
        except Undivided:
            continue
        finally:
            own, narrowing.parts = narrowing.products, parts
        if elements_of(other) + sum(map(elements_of, own)) > shared:
            return True
    return False


def check_ranks(graph: Graph) -> None:
    """Raises InvalidOptionError for more ranks than any layer has heads: some would have no part of attention."""
    most = max((node.attrs["heads"] for node in graph.find("paged_attention")), default=None)
    if most is not None and graph.facts.tensor_parallel > most:
        raise InvalidOptionError(
            f"tensor_parallel must be at most {most}, the heads of a layer, not {graph.facts.tensor_parallel}; share "
            "the layers among stages instead (pipeline_parallel)"
        )


def _linear(narrowing: Narrowing, node: Node) -> Value:
    x, w, bias = node.operand(0), node.operand(1), node.optional(2)
    if not w.is_stored:
        raise Undivided("a product of two computed values")
    ranges = narrowing.own_columns(x)
    inputs: list[Value | None] = [narrowing.narrow(x, ranges), narrowing.stored(w, 1, ranges)]
    if bias is not None and narrowing.rank == 0:
        inputs.append(bias)
    return narrowing.emit(node, inputs, dict(node.attrs))[0]


def _experts(narrowing: Narrowing, node: Node) -> Value:
    whole = narrowing.graph.facts.expert_parallel
    if node.attrs.get("identities", 0):
        if whole:
            raise InvalidOptionError(
                f"expert_parallel: {node.scope} has experts that give back what they read, and every rank computes "
                "such a mixture whole; leave out expert_parallel"
            )
        raise Undivided("a mixture with experts that give back what they read")
    return _whole_experts(narrowing, node) if whole else _parts_of_experts(narrowing, node)


def _whole_experts(narrowing: Narrowing, node: Node) -> Value:
    """Gives the rank some of the experts, each with all its columns and its biases."""
    total = int(node.operand(3).shape[0])
    if total < narrowing.ranks:
        raise InvalidOptionError(
            f"expert_parallel: {node.scope} has {total} experts, fewer than the {narrowing.ranks} ranks of a stage; "
            "leave out expert_parallel, and each expert is shared"
        )
    first, end = cut(total, narrowing.ranks, narrowing.rank)
    matrices = [None if v is None else narrowing.stored(v, 0, ((first, end),)) for v in node.inputs[3:]]
    return narrowing.emit(node, [*node.inputs[:3], *matrices], {**node.attrs, "first": first, "total": total})[0]


def _parts_of_experts(narrowing: Narrowing, node: Node) -> Value:
    """Gives the rank some of the columns of every expert."""
    up, down = node.operand(3), node.operand(4)
    inner = int(down.shape[2])
    own = cut_columns(inner, narrowing.ranks, narrowing.rank)
    if own is None:
        raise Undivided(f"experts of {inner} columns are narrower than the {narrowing.ranks} ranks")
    gated = node.attrs.get("gated", DEFAULTS["gated"])
    ranges = (own, *shifted((own,), inner)) if gated else (own,)
    inputs: list[Value | None] = [
        *node.inputs[:3], narrowing.stored(up, 1, ranges), narrowing.stored(down, 2, (own,))
    ]  # fmt: skip
    up_bias, down_bias = node.optional(5), node.optional(6)
    biases = [
        None if up_bias is None else narrowing.stored(up_bias, 1, ranges),
        down_bias if narrowing.rank == 0 else None,
    ]
    while biases and biases[-1] is None:
        biases.pop()
    return narrowing.emit(node, [*inputs, *biases], dict(node.attrs))[0]


PARTS = {"linear": _linear, "experts": _experts}
"""How a rank computes its part of a product, by the name of the operation."""


def _require_one_cut(graph: Graph, narrowing: Narrowing) -> None:
    """Raises UnsupportedModelError if the heads of one cache are all there for one reader and a part for another."""
    for node in graph.find("paged_attention"):
        layer = node.attrs["layer"]
        kept = narrowing.parts.kv_heads.get(layer, narrowing.kv_heads[layer])
        if node.attrs["kv_heads"] != kept:
            raise UnsupportedModelError(
                f"{node.scope}: tensor_parallel cannot share the cache of layer {layer}, for one of the layers that "
                "read it has to see all heads; use pipeline_parallel"
            )


def _require_one_state(graph: Graph) -> None:
    """Raises UnsupportedModelError if a recurrence is there twice: with all channels for one reader, and with those of
    the rank for another."""
    found: dict[int, str] = {}
    for node in graph.nodes:
        if any(v.dtype == "state" for v in node.outputs) and node.op != "input":
            layer = node.attrs["state"]
            if layer in found:
                raise UnsupportedModelError(
                    f"{node.scope}: tensor_parallel cannot share the state of {node.op}, for one of the products that "
                    "read it needs all channels; use pipeline_parallel"
                )
            found[layer] = node.op


def _join_sums(graph: Graph) -> None:
    """all_reduce(a) + all_reduce(b)  ->  all_reduce(a + b), where nothing else reads the two sums."""
    joined = True
    while joined:
        joined = False
        users = graph.users()
        for node in graph.find("add"):
            sums = [v.node for v in node.inputs if v is not None and v.node is not None and v.node.op == "all_reduce"]
            if len(sums) < 2 or sums[0] is sums[1] or any(len(users[s.output]) > 1 for s in sums):
                continue
            kind = (node.output.dtype, node.output.shape)
            both = make_node(graph, "add", [s.operand(0) for s in sums], {}, [kind], node.scope, node.output.name)
            total = make_node(graph, "all_reduce", [both.output], {}, [kind], node.scope, node.output.name)
            splice(graph, {id(node): [both, total]}, {node.output: total.output})
            joined = True
            break


def _join_siblings(graph: Graph, plain: set[Value]) -> None:
    """all_reduce(linear(x, A)), all_reduce(linear(x, B))  ->  slices of all_reduce(linear(x, concat(A, B)))

    Few numbers take as long to exchange as one, and these are few: the inputs of Mamba's steps, its B and its C. plain:
    the sums of products that have no bias; of one with a bias, the first rank alone sees that it has.
    """
    users = graph.users()
    siblings: dict[Value, list[Node]] = {}
    for total in graph.find("all_reduce"):
        part = total.operand(0).producer
        if total.output in plain and len(users[part.output]) == 1 and part.operand(1).producer.op == "weight":
            siblings.setdefault(part.operand(0), []).append(total)
    for x, totals in siblings.items():
        if len(totals) == 1:
            continue
        parts = [total.operand(0).producer for total in totals]
        expressions = [part.operand(1).producer.attrs["expr"] for part in parts]
        g = Rewriter(graph, totals[0])
        widths = [int(total.output.shape[1]) for total in totals]
        w = g.weight(
            type=(parts[0].operand(1).dtype, (sum(widths), x.shape[1])),
            expr=expressions[0].concat(expressions[1:], 0),
            scope=parts[0].operand(1).producer.scope,
        )
        joined = g.all_reduce(g.linear(x, w))
        ends = list(accumulate(widths))
        slices = [
            g.slice(joined, dim=1, start=end - size, end=end, step=1) for size, end in zip(widths, ends, strict=True)
        ]
        forward = dict(zip((total.output for total in totals), slices, strict=True))
        splice(graph, {id(totals[0]): g.nodes}, forward)
