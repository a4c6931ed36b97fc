"""recognise_attention:  softmax(scale * q k^T + mask) v  ->  attention(q, k, v, sinks?, slopes?, scale, mask, ...)

S tokens, H heads, D head dim.  In the trace q, k, v are [1, H, S, D]; attention takes and gives [1, S, H, D]. v may
have fewer columns than k. Layers may share k and v. k and v may have one head for all heads of q. The mask must have
the form that recognise_masks writes. A bias of the form that recognise_alibi writes gives the slopes [H]. The scale may
be a divisor. With a cap, scores are cap * tanh(scores / cap) before the mask. With sinks [H], the softmax has one more
column, a learned score of each head, whose probability is then dropped. That divides by sum(exp(scores)) + exp(sink),
so a model may multiply by sigmoid(logsumexp(scores) - sink) instead. A model may scale after the mask, which a positive
number does not change: (q k^T + mask) * scale = q k^T * scale + mask.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.recognise_masks import read_mask, read_slopes
from tensorwright.passes.rewriting.attention_vectors import without_absent
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

_SCORES = """
    keys    = transpose(k, dim0=-2, dim1=-1)
    product = matmul(q, keys)
    scaled  = either(div(product, divisor), mul?(product, scale))
    bounded = tanh(either(div(scaled, cap), mul(scaled, inverse)))
    scores  = either(mul(bounded, cap), scaled)
    masked  = add(scores, mask)
"""
PATTERN = pattern(
    _SCORES
    + """
    column  = expand(view(sinks))
    wider   = concat(masked, column, dim=-1)
    shifted = either(sub(wider, amax(wider, dims=[-1], keepdim=True)), wider)
    weights = either(softmax(masked, dim=-1), slice(softmax(shifted, dim=-1), dim=-1, start=0, step=1))
    out     = matmul(weights, v)
    """,
    shared=["keys"],
    commute=True,
)
SHARED_LATE = pattern(
    _SCORES
    + """
    top     = amax(masked, dims=[-1], keepdim=True)
    total   = sum(exp(sub(masked, top)), dims=[-1], keepdim=True)
    sum_log = add(log(total), top)
    column  = view(sinks)
    share   = view(sigmoid(sub(view(sum_log), column)))
    weights = softmax(masked, dim=-1)
    out     = mul(matmul(weights, v), share)
    """,
    commute=True,
)
SCALED_LATE = pattern(
    """
    product = matmul(q, transpose(k, dim0=-2, dim1=-1))
    masked  = add(product, mask)
    weights = softmax(either(div(masked, divisor), mul(masked, scale)), dim=-1)
    out     = matmul(weights, v)
    """,
    commute=True,
)


def check_shapes(m: Match) -> None:
    m.bind_shape(m.q, "1 H S D")
    m.bind_shape(m.k, "1 Hkv S D")
    m.bind_shape(m.v, "1 Hkv S Dv")
    m.require(m.dims["Hkv"] in (m.dims["H"], 1), "k has neither one head nor as many as q", m.k)
    check_mask(m)


def check_mask(m: Match) -> None:
    """Notes the span of positions, and the slopes of a bias that has them."""
    sloped = read_slopes(m.mask)
    m.notes["slopes"] = None if sloped is None else sloped.slopes
    m.bind_shape(m.mask, "1 1 S S" if sloped is None else "1 H S S")
    if sloped is not None:
        m.bind_shape(sloped.slopes, "1 H 1 1")
        m.require(sloped.slopes.producer.op == "constant", "slopes that are no constant", sloped.slopes)
    m.notes["span"] = read_mask(m.mask if sloped is None else sloped.mask)
    m.require(m.notes["span"] is not None, "the mask is not one that recognise_masks understood", m.mask)


def check_late(m: Match) -> None:
    check_shapes(m)
    scale = m.scalar(m.scale) if m.divisor is None else 1.0 / (m.scalar(m.divisor) or -1.0)
    m.require(scale > 0, "masked scores are not scaled by a positive number", m.masked)
    m.require(m.notes["slopes"] is None, "a bias that is scaled with the scores", m.mask)
    m.notes.update(scale=scale, softcap=0.0, sinks=None)


def check_scores(m: Match) -> None:
    check_shapes(m)
    divisor = 1.0 if m.divisor is None else m.scalar(m.divisor)
    m.require(divisor != 0, "scores are divided by zero", m.divisor)
    m.notes["scale"] = 1.0 / divisor if m.scale is None else m.scalar(m.scale)
    m.notes["softcap"] = 0.0 if m.cap is None else m.scalar(m.cap)
    # canonicalise_scalars turns division by a power of two into a product.
    inverse_fits = m.inverse is None or m.scalar(m.inverse) * m.notes["softcap"] == 1.0
    m.require(inverse_fits, "scores are not divided by what bounds them", m.inverse)
    m.notes["sinks"] = m.sinks


def check(m: Match) -> None:
    check_scores(m)
    if m.sinks is not None:
        check_sinks(m, "1 H S 1")


def check_shared_late(m: Match) -> None:
    check_scores(m)
    check_sinks(m, "1 H 1")
    m.bind_shape(m.share, "1 H S 1")


def check_sinks(m: Match, column: str) -> None:
    m.require(m.sinks.node is not None and m.sinks.node.op == "weight", "sinks that are no weight", m.sinks)
    m.bind_shape(m.sinks, "H")
    m.bind_shape(m.column, column)
    m.bind_shape(m.weights, "1 H S S")  # only the last column, the sinks', is dropped


def replace(m: Match, g: Rewriter) -> Value:
    q, k, v = (g.transpose(x, dim0=1, dim1=2) for x in (m.q, m.k, m.v))
    span, sinks, slopes = m.notes["span"], m.notes["sinks"], m.notes["slopes"]
    if slopes is not None:
        slopes = g.constant(np.ravel(slopes.constant), "float32", (m.dims["H"],))
    context = g.attention(
        q,
        k,
        v,
        *without_absent(sinks, slopes),
        scale=m.notes["scale"],
        mask="chunk" if span.chunked else "window" if span.window else "causal",
        window=span.window,
        softcap=m.notes["softcap"],
    )
    out: Value = g.transpose(context, dim0=1, dim1=2)
    return out


def recognise_attention(graph: Graph) -> int:
    return (
        apply(graph, SHARED_LATE, check_shared_late, replace)
        + apply(graph, PATTERN, check, replace)
        + apply(graph, SCALED_LATE, check_late, replace)
    )
