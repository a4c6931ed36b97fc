"""shard_vocabulary:  embedding(W, token_ids)  ->  all_reduce(embedding(rows of W of this rank, token_ids){first})

and  linear(x, W) -> logits  becomes  all_gather(linear(x, rows of W of this rank)).  Each rank has the rows of some
tokens. It embeds these, and zeros for all others, so the sum is exact; of the logits it computes those of its tokens. A
matrix that serves as both is stored once on each rank.

The facts tensor_parallel and tensor_rank say who shares; with one rank nothing is rewritten.
"""

from __future__ import annotations

from tensorwright.ir import Graph
from tensorwright.passes.rewriting.cut import cut_columns
from tensorwright.passes.rewriting.narrow import Narrowing, Undivided
from tensorwright.passes.rewriting.narrow_rules import RULES
from tensorwright.passes.rewriting.rewriter import make_node, splice


def shard_vocabulary(graph: Graph) -> int:
    """Returns how many matrices were shared."""
    if graph.facts.tensor_parallel == 1:
        return 0
    return _share_embeddings(graph) + _share_logits(graph)


def _share_embeddings(graph: Graph) -> int:
    """Shares tables of weights that tokens are looked up in. A table of positions stays: each rank has all of it."""
    count = 0
    for node in list(graph.find("embedding")):
        table, ids = node.operand(0), node.operand(1)
        own = cut_columns(int(table.shape[0]), graph.facts.tensor_parallel, graph.facts.tensor_rank)
        if ids.name != "token_ids" or table.producer.op != "weight" or "first" in node.attrs or own is None:
            continue
        narrowing = Narrowing(graph, RULES)
        part = narrowing.stored(table, 0, (own,))
        (rows,) = narrowing.emit(node, [part, ids], {**node.attrs, "first": own[0]})
        kind = (node.output.dtype, node.output.shape)
        total = make_node(graph, "all_reduce", [rows], {}, [kind], node.scope, node.output.name)
        splice(graph, {id(node): [*narrowing.nodes, total]}, {node.output: total.output})
        count += 1
    return count


def _share_logits(graph: Graph) -> int:
    logits = graph.outputs[0]
    columns = int(logits.shape[1])
    own = cut_columns(columns, graph.facts.tensor_parallel, graph.facts.tensor_rank)
    if own is None or logits.producer.op in ("all_gather", "send"):
        return 0
    narrowing = Narrowing(graph, RULES)
    try:
        part = narrowing.narrow(logits, (own,))
    except Undivided as reason:
        graph.facts.left_whole = [*graph.facts.left_whole, f"{logits.producer.scope}: {reason}"]
        return 0
    kind = (logits.dtype, logits.shape)
    attrs = {"first": own[0], "columns": columns}
    node = logits.producer
    total = make_node(graph, "all_gather", [part], attrs, [kind], node.scope, logits.name)
    splice(graph, {id(node): [*narrowing.nodes, total]}, {logits: total.output})
    return 1
