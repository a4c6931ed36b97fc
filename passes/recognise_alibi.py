"""recognise_alibi:  any bias of scores that falls with distance  ->  slope of the head * (key - query) + mask

S positions, H heads.  bias: [1, H, 1 or S, S].  A softmax does not change when all scores of a query grow by one
number, so only differences between the keys of a query count: slope * key is the same bias as slope * (key - query).
As recognise_masks does, the pass looks at the bias's values and not at how they are computed. What a query sees of
them must be a straight line of one slope per head, as far as float32 goes, and what it does not see a mask.

ALiBi is Press et al., "Train short, test long", 2022.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Node, Value
from tensorwright.passes.recognise_masks import (
    HIDDEN,
    Span,
    depends_on_positions_only,
    evaluate,
    masked_scores,
    one_span,
    read_slopes,
    refusal,
    span_at,
    spell,
)
from tensorwright.passes.rewriting.rewriter import Rewriter, splice

ROUNDINGS = 16
"""How many roundings of a bias's largest value may separate it from a straight line: those of its few products."""


def recognise_alibi(graph: Graph) -> int:
    """Returns how many different biases there were. Raises UnsupportedModelError for one that is no straight line."""
    forward: dict[Value, Value] = {}
    inserted: dict[int, list[Node]] = {}
    for bias in find_biases(graph):
        slopes, span = fit(graph, bias)
        g = Rewriter(graph, bias.producer)
        forward[bias] = spell_bias(g, bias, slopes, span)
        inserted[id(bias.producer)] = g.nodes
    if inserted:
        splice(graph, inserted, forward)
    return len(inserted)


def find_biases(graph: Graph) -> list[Value]:
    """Finds addends of scores before a softmax that depend on positions alone and differ from head to head."""
    found: dict[Value, None] = {}
    for node in graph.find("softmax"):
        scores = masked_scores(node)
        for value in scores.inputs if scores is not None and scores.op == "add" else []:
            of_heads = value is not None and value.rank == 4 and value.shape[:2] != (1, 1)
            if value is not None and of_heads and depends_on_positions_only(value) and read_slopes(value) is None:
                found[value] = None
    return list(found)


def fit(graph: Graph, bias: Value) -> tuple[np.ndarray, Span]:
    """Returns the slopes, [H] float32, and the span of a bias."""
    slopes = slopes_of(biases_at(graph, bias, 2))
    return slopes, one_span(graph, bias, lambda length: fit_at(bias, biases_at(graph, bias, length), slopes))


def biases_at(graph: Graph, bias: Value, length: int) -> np.ndarray:
    """Returns [H, length, length]."""
    values = evaluate(graph, bias, length)
    heads = values.shape[1]
    if values.shape[0] != 1 or values.shape[3] != length or values.shape[2] not in (1, length):
        raise refusal(bias, f"it has shape {list(values.shape)} at {length} positions, not a number for each")
    return np.broadcast_to(values[0], (heads, length, length))


def slopes_of(values: np.ndarray) -> np.ndarray:
    """Returns what the second query's biases differ by between its two keys, [H]."""
    return np.asarray(values[:, 1, 1] - values[:, 1, 0], np.float32)


def fit_at(bias: Value, values: np.ndarray, slopes: np.ndarray) -> Span:
    """Returns the span that values [H, S, S] have. Raises UnsupportedModelError if they are no line of `slopes`."""
    length = values.shape[-1]
    visible = values > HIDDEN
    if not np.array_equal(visible, np.broadcast_to(visible[:1], visible.shape)):
        raise refusal(bias, f"at {length} positions its heads do not see the same keys")
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    # A query sees itself, so that its own bias is what the line of the query begins with.
    own = np.diagonal(values, axis1=1, axis2=2)[:, :, None].astype(np.float64)
    off = np.where(visible, values - own - slopes.astype(np.float64)[:, None, None] * distance, 0.0)
    largest = np.abs(np.where(visible, values, 0.0)).max()
    if np.abs(off).max() > ROUNDINGS * 2.0**-24 * largest:
        head, query, key = np.unravel_index(np.abs(off).argmax(), off.shape)
        raise refusal(bias, f"for head {head}, key {key} is off a straight line of query {query}")
    return span_at(bias, visible[0])


def spell_bias(g: Rewriter, bias: Value, slopes: np.ndarray, span: Span) -> Value:
    """Writes the canonical bias, which read_slopes reads."""
    length = bias.shape[-1]
    positions = g.arange(start=0, end=length, step=1, dtype="int64")
    distance = g.sub(g.view(positions, shape=(1, 1, 1, length)), g.view(positions, shape=(1, 1, length, 1)))
    heads = g.constant(slopes.reshape(1, -1, 1, 1), "float32", (1, len(slopes), 1, 1))
    out: Value = g.add("add", g.mul(heads, distance), spell(g, (1, 1, length, length), span))
    return out
