"""recognise_masks:  any computation of an attention mask  ->  where(k <= q [and k > q - window], 0, -inf)

S positions.  The pass looks at the mask's values, not at how they are computed: it evaluates the mask's subgraph at
lengths past every number in it. The result must equal a causal mask exactly, everywhere, or one with a sliding window,
or one with chunks: where(k <= q and k // chunk == q // chunk, 0, -inf). Other masks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tensorwright.errors import UnsupportedModelError
from tensorwright.ir import Graph, Node, Shape, Value
from tensorwright.passes.rewriting.matcher import Match, describe, match_value, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter, splice
from tensorwright.plugins.paged_attention.attention import first_seen

CAUSAL = pattern("out = where(le(view(arange()), view(arange())), 0, hidden)")
WINDOW = pattern("""
    key     = view(arange())
    query   = view(arange())
    visible = logical_and(le(key, query), gt(key, add(query, minus_window)))
    out     = where(visible, 0, hidden)
""")
CHUNK = pattern("""
    key     = view(arange())
    query   = view(arange())
    visible = logical_and(le(key, query), eq(floor_div(key, chunk), floor_div(query, chunk)))
    out     = where(visible, 0, hidden)
""")

SLOPED = pattern("""
    distance = sub(view(arange()), view(arange()))
    out      = add(mul(slopes, distance), mask)
""")
"""What recognise_alibi writes. slopes: a constant [1, H, 1, 1]."""

HIDDEN = -1e30
"""A lower score has a probability of exactly zero beside any visible score."""

LOWEST_FLOAT16 = -65504.0
"""The lowest number of float16, which hides scores in a model of float16, where scores are far smaller."""

ALWAYS = 512
"""The least number of positions to evaluate, even if all numbers are small: several of them may multiply."""

INTEGERS = ("int32", "int64")

LONGEST = 12288
"""The most positions to evaluate: beyond it a mask of S x S elements takes more memory than a build should."""


class Span(NamedTuple):
    """The positions that a query sees, of those up to its own.

    window: how many; 0 means all. chunked: whether the window begins at a multiple of its length, and does not slide.
    """

    window: int = 0
    chunked: bool = False

    def __str__(self) -> str:
        return f"a chunk of {self.window}" if self.chunked else f"a window of {self.window}" if self.window else "all"


def recognise_masks(graph: Graph) -> int:
    """Returns how many different masks there were. Raises UnsupportedModelError for a mask that does not fit."""
    forward: dict[Value, Value] = {}
    inserted: dict[int, list[Node]] = {}
    for mask in find_masks(graph):
        span = fit(graph, mask)
        builder = Rewriter(graph, mask.producer)
        forward[mask] = spell(builder, mask.shape, span)
        inserted[id(mask.producer)] = builder.nodes
    if inserted:
        splice(graph, inserted, forward)
    return len(inserted)


def find_masks(graph: Graph) -> list[Value]:
    """Finds addends of scores before a softmax that depend on positions alone and are not in the canonical form."""
    found: dict[Value, None] = {}
    for node in graph.find("softmax"):
        scores = masked_scores(node)
        if scores is None or scores.op != "add":
            continue
        for value in scores.inputs:
            if value is not None and depends_on_positions_only(value) and not is_spelled(value):
                found[value] = None
    return list(found)


def masked_scores(softmax: Node) -> Node | None:
    """Returns the scores that go into a softmax, before the maximum is subtracted and the sinks' column is added.

    Masked scores may be multiplied or divided by a number.
    """
    value = softmax.inputs[0]
    if value is not None and value.node is not None and value.node.op in ("mul", "div"):
        by = value.node.inputs[1]
        value = value.node.inputs[0] if by is not None and by.is_scalar_constant else value
    for op in ("sub", "concat"):
        if value is not None and value.node is not None and value.node.op == op:
            value = value.node.inputs[0]
    return None if value is None else value.node


def is_spelled(value: Value) -> bool:
    """Returns whether a bias of scores has the form that this pass or recognise_alibi writes."""
    return read_mask(value) is not None or read_slopes(value) is not None


def read_slopes(bias: Value) -> Match | None:
    """Returns the match of a bias that recognise_alibi wrote, with its slopes and its mask; None for another value."""
    return match_value(bias, SLOPED, lambda m: m.require(read_mask(m.mask) is not None, "no mask", m.mask))


def read_mask(mask: Value) -> Span | None:
    """Returns what a canonical mask shows; None for any other value."""
    if match_value(mask, CAUSAL, check_hidden) is not None:
        return Span()
    if (match := match_value(mask, WINDOW, check_hidden)) is not None:
        return Span(-int(match.minus_window.constant))
    match = match_value(mask, CHUNK, check_hidden)
    return None if match is None else Span(int(match.chunk.constant), chunked=True)


def check_hidden(m: Match) -> None:
    m.require(m.scalar(m.hidden) == -np.inf, "hidden positions are not minus infinity", m.hidden)


def cone(value: Value) -> list[Node]:
    """Returns every node that `value` depends on, in no particular order."""
    seen: dict[int, Node] = {}
    stack = [value.node]
    while stack:
        node = stack.pop()
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            stack.extend(v.node for v in node.inputs if v is not None)
    return list(seen.values())


def depends_on_positions_only(value: Value) -> bool:
    """Returns whether `value` depends on positions and constants only. A mask of weights or embeddings is no mask."""
    if value.rank < 2 or value.is_scalar_constant:
        return False
    nodes = cone(value)
    learned = any(n.op in ("weight", "embedding") for n in nodes)
    return not learned and all(n.output.dtype in INTEGERS for n in nodes if n.op == "input")


def fit(graph: Graph, mask: Value) -> Span:
    """Returns what `mask` shows at every length tried."""
    return one_span(graph, mask, lambda length: fit_at(graph, mask, length))


def one_span(graph: Graph, mask: Value, span_of: Callable[[int], Span]) -> Span:
    """Returns what `mask` shows at every length. Raises UnsupportedModelError if lengths differ in it."""
    spans = {length: span_of(length) for length in lengths(graph, mask)}
    longest = max(spans)
    span = spans[longest]
    if span.chunked and longest < min(limit_of(graph), 2 * span.window + 2) <= LONGEST:
        # One end of a chunk does not show that there are more.
        longest = min(limit_of(graph), 2 * span.window + 2)
        spans[longest] = span_of(longest)
    # A window shows only at lengths past it. At shorter lengths the mask must be causal.
    for length, found in spans.items():
        if found != (span if span.window < length else Span()):
            raise refusal(mask, f"it shows {span} at {longest} positions and {found} at {length}")
    return span


def limit_of(graph: Graph) -> int:
    """Returns the most positions that a sequence may have."""
    return graph.facts.max_seq_len if "max_seq_len" in graph.facts else 2**31


def lengths(graph: Graph, mask: Value) -> list[int]:
    """Returns some short lengths, and one past every number that the mask's subgraph contains."""
    limit = limit_of(graph)
    numbers = [n for n in numbers_in(cone(mask)) if 1 < n < limit]
    longest = min(limit, max(max(numbers, default=0) + 67, ALWAYS))
    if longest > LONGEST:
        raise refusal(mask, f"it would have to be evaluated at {longest} positions, past the {LONGEST} possible")
    return sorted({min(n, longest) for n in (2, 3, 17, 64, longest)})


def numbers_in(nodes: list[Node]) -> Iterator[int]:
    """Yields absolute values of all integers in constants and attributes, but not the lowest float16: no length.

    A constant may be the mask itself, for some number of positions. Its dimensions count too.
    """
    for node in nodes:
        if node.op == "constant":
            yield from (int(dim) for dim in node.output.shape)
        for attr in node.attrs.values():
            items: Any = np.ravel(np.asarray(attr)) if not isinstance(attr, str) else ()
            numbers = (x for x in items if isinstance(x, np.number) and abs(x) < 2**31)
            yield from (abs(int(x)) for x in numbers if isinstance(x, np.integer) or x != LOWEST_FLOAT16)


def fit_at(graph: Graph, mask: Value, length: int) -> Span:
    values = evaluate(graph, mask, length)
    if values.shape[-2:] != (length, length) or values.size != length * length:
        raise refusal(mask, f"it has shape {list(values.shape)} at {length} positions, not one row for each")
    values = values.reshape(length, length)
    visible = values == 0
    hidden = values <= LOWEST_FLOAT16 if "dtype" in graph.facts and graph.facts.dtype == "float16" else values < HIDDEN
    if not np.all(visible | hidden):
        raise refusal(mask, "it adds something else than zero or minus infinity")
    return span_at(mask, visible)


def span_at(mask: Value, visible: np.ndarray) -> Span:
    """Returns the span of what each query sees, [S, S] bool."""
    length = len(visible)
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    first = visible.argmax(axis=1)
    if np.array_equal(visible, (key <= query) & (key >= first[:, None])):
        # The first query that does not see all is the first behind a whole window.
        window = int((first > 0).argmax())
        for span in (Span(window), Span(window, chunked=True)):
            if np.array_equal(first, first_seen(query[:, 0], *span)):
                return span
    q, k = np.argwhere(visible != (key <= query))[0]
    seen = "visible" if visible[q, k] else "hidden"
    raise refusal(mask, f"at {length} positions, key {k} is {seen} to query {q}")


def evaluate(graph: Graph, mask: Value, length: int) -> np.ndarray:
    """Returns the mask of one sequence at positions 0 .. length - 1."""
    import torch

    from tensorwright.ir.interpret import interpret

    part = graph.clone()
    part.outputs = [part.value(mask.name)]
    # The evaluation takes the length from the inputs, even if the mask reads none of them.
    ids = [n for n in part.find("input") if n.output.dtype in INTEGERS]
    needed = {id(n) for n in (*cone(part.outputs[0]), *ids)}
    part.nodes = [n for n in part.nodes if id(n) in needed]
    sequence = torch.arange(length, dtype=torch.int64)[None]
    inputs = {v.name: sequence for v in part.inputs}
    (result,) = interpret(part, inputs, _no_weights)
    array: np.ndarray = result.to(torch.float32).numpy()
    return array


def _no_weights(expr: object) -> NoReturn:
    raise AssertionError("a mask depends on no weight")


def refusal(mask: Value, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"recognise_masks: an attention mask must be causal, a sliding window or chunks, but {describe(mask)} is "
        f"none of these: {why}"
    )


def spell(g: Rewriter, shape: Shape, span: Span) -> Value:
    """Writes the canonical mask of the rank of `shape`, [..., S, S]."""
    length = shape[-1]
    ones = [1] * (len(shape) - 2)
    positions = g.arange(start=0, end=length, step=1, dtype="int64")
    key = g.view(positions, shape=(*ones, 1, length))
    query = g.view(positions, shape=(*ones, length, 1))
    visible = g.le(key, query)
    if span.chunked:
        chunk = g.constant(span.window, "int64")
        visible = g.logical_and(visible, g.eq(g.floor_div(key, chunk), g.floor_div(query, chunk)))
    elif span.window:
        recent = g.gt(key, g.add("add", query, g.constant(-span.window, "int64")))
        visible = g.logical_and(visible, recent)
    out: Value = g.where(visible, g.constant(0.0, "float32"), g.constant(float("-inf"), "float32"))
    return out
