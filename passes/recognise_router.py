"""recognise_router:  topk(softmax(logits))  ->  route(logits), and experts of [1, S, C]

    p = softmax(logits);  w, index = topk(p, k)                      ->  index, w = route(logits){k}
    w / sum(w)                                                       ->  the same, with normalise
    l, index = topk(logits, k);  w = softmax(l)                      ->  the same, with normalise

S tokens, H hidden, E experts, k slots.  flat: [S, H] is a view of x: [1, S, H].  logits: [S, E].
The k largest logits have the k largest probabilities, and their softmax is these over their sum.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    probabilities = softmax(logits, dim=-1)
    best, index   = topk(probabilities, dim=-1, k=k)
    total         = sum(best, dims=[-1], keepdim=True)
    shares        = div(best, total)
    out           = experts(flat, index, either(shares, best), gate_up, down, activation=activation)
    """
)
CHOSEN_FIRST = pattern(
    """
    best, index = topk(logits, dim=-1, k=k)
    shares      = softmax(best, dim=-1)
    out         = experts(flat, index, shares, gate_up, down, activation=activation)
    """
)


def check(m: Match) -> None:
    m.bind_shape(m.flat, "S H")
    m.bind_shape(m.logits, "S E")
    m.require(m.logits.dtype == m.flat.dtype == "float32", "not float32", m.logits)


def replace(m: Match, g: Rewriter) -> Value:
    logits = g.view(m.logits, shape=(1, *m.logits.shape))
    index, weights = g.route(logits, k=m.k, normalise=m.shares is not None)
    x = g.view(m.flat, shape=(1, *m.flat.shape))
    y = g.experts(x, index, weights, m.gate_up, m.down, activation=m.activation)
    out: Value = g.view(y, shape=m.out.shape)
    return out


def recognise_router(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace) + apply(graph, CHOSEN_FIRST, check, replace)
