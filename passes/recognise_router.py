"""recognise_router:  experts of rows that a computation chose  ->  experts of [1, S, C] that a route chose

    out = experts(flat, index, weights, ...)   ->   index, weights = route(logits, bias?, expert_scales?){k, ...}

A route is read backwards in small steps, a few patterns each. What they say together are its attributes:

    weights   the chosen scores [/ their sum] [* scale] [* expert_scales at the chosen places]: the values of a topk,
              or a gather by its places
    scores    softmax(logits) or sigmoid(logits), before or after the choice
    choice    what topk takes its places from: logits or scores, with a bias or not
    groups    a choice that a mask limits to some of the groups of experts

S tokens, H hidden, E experts, k slots, G groups.  flat: [S, H] is a view of x: [1, S, H].  logits: [S, E].
The k largest logits have the k largest scores, so that without a bias the logits decide.
"""

from __future__ import annotations

from typing import Any

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.graph import STORED
from tensorwright.passes.rewriting.matcher import Match, apply, describe, match_value, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("out = experts(flat, index, weights, up, down, up_bias?, down_bias?)")

SCALED = pattern("out = mul(weights, scale)")
SCALED_BY_EXPERT = pattern("out = mul(weights, index(expert_scales, places))", commute=True)
NORMALISED = pattern("""
    total = sum(abs?(weights), dims=[-1], keepdim=True)
    out   = div(weights, total)
""")
NORMALISED_WITH_EPSILON = pattern("""
    total = add(sum(weights, dims=[-1], keepdim=True), epsilon)
    out   = div(weights, total)
""")
NORMALISED_FROM_LEAST = pattern("""
    total = clamp(sum(weights, dims=[-1], keepdim=True), min=least, max=None)
    out   = div(weights, total)
""")
TOP = pattern("values, places = topk(choice, dim=-1, k=k)")
PICKED = pattern("out = gather(scores, places, dim=-1)")
SOFTMAX = pattern("out = softmax(logits, dim=-1)")
SIGMOID = pattern("out = sigmoid(logits)")
BIASED = pattern("out = add(scores, bias)", commute=True)
LIMITED = pattern("""
    grouped      = view(choice)
    best, within = topk(grouped, dim=-1, k=group_best)
    sums         = sum(best, dims=[-1], keepdim=False)
    top, groups  = topk(sums, dim=-1, k=group_limit)
    chosen       = scatter(zeros, groups, dim=-1, value=1)
    counts       = view(expand(view(chosen)))
    out          = where(logical_not(cast?(counts, dtype="bool")), left_out, choice)
""")
LIMITED_BY_LARGEST = pattern("""
    grouped     = view(choice)
    sums        = amax(grouped, dims=[-1], keepdim=False)
    top, groups = topk(sums, dim=-1, k=group_limit)
    chosen      = scatter(zeros, groups, dim=-1, value=1)
    counts      = view(expand(view(chosen)))
    out         = where(logical_not(cast?(counts, dtype="bool")), left_out, choice)
""")
MIXED_SPARSELY = pattern("""
    largest, first   = topk(logits, dim=-1, k=1)
    far              = gt(div(sub(largest, logits), maximum(abs(logits), largest)), limit)
    share            = gather(softmax(where(far, minus_infinity, logits), dim=-1), first, dim=-1)
    left             = scatter(logits, first, dim=-1, value=removed)
    next, second     = topk(left, dim=-1, k=1)
    further          = gt(div(sub(next, logits), maximum(abs(logits), next)), limit_again)
    next_share       = gather(softmax(where(further, infinity_again, left), dim=-1), second, dim=-1)
    out              = concat(share, next_share, dim=-1)
""", commute=True)  # fmt: skip
PLACES = pattern("out = concat(first, second, dim=-1)")


class Reading:
    """What is read of one route: its operands, its attributes, and the nodes that they stand for."""

    def __init__(self, m: Match):
        self.m = m
        self.attrs: dict[str, Any] = {"k": 0, "normalise": False}
        self.logits: Value | None = None
        self.bias: Value | None = None
        self.expert_scales: Value | None = None
        self.nodes: list[Node] = []

    def match(self, value: Value, *patterns: Any) -> Match | None:
        """Returns the match of the first of `patterns` that ends in `value`, and remembers its nodes."""
        for one in patterns:
            found = match_value(value, one)
            if found is not None:
                self.nodes += found.nodes
                return found
        return None

    def take(self, value: Value, reason: str, *patterns: Any) -> Match:
        """Returns what `match` returns. Refuses the router if there is no match."""
        found = self.match(value, *patterns)
        self.m.require(found is not None, reason, value)
        assert found is not None
        return found

    def read(self) -> None:
        if self.match(self.m.weights, MIXED_SPARSELY) is not None:
            self.read_sparse_mixture()
            return
        values = self.read_factors(self.read_expert_scales(self.m.weights))
        top = self.take(self.m.index, "the experts are not the places of a topk", TOP)
        self.m.require(top.places is self.m.index, "the experts are not the places of a topk", self.m.index)
        self.attrs["k"] = top.k
        scores = self.read_chosen(values, top)
        choice = self.read_groups(top.choice, scores)
        self.read_choice(choice, scores)

    def read_expert_scales(self, weights: Value) -> Value:
        """Reads the number of each expert that its weight is multiplied by. Returns what is left of the weights."""
        found = self.match(weights, SCALED_BY_EXPERT)
        if found is None:
            return weights
        scales = found.expert_scales
        self.m.require(found.places is self.m.index, "the numbers of other experts scale the weights", weights)
        self.m.require(scales.rank == 1, "the numbers that scale the weights are no vector", scales)
        self.expert_scales = stored_vector(scales)
        self.m.require(self.expert_scales is not None, "what scales the weights is not of the checkpoint", scales)
        return found.weights  # type: ignore[no-any-return]

    def read_factors(self, weights: Value) -> Value:
        """Reads the scale and the sum by which weights are divided. Returns what is left of them.

        The sum may be one of absolute values, for scores of all routers are positive.
        """
        found = match_value(weights, SCALED)
        if found is not None and found.scale.is_scalar_constant:
            self.nodes += found.nodes
            self.attrs["scale"] = float(found.scale.constant)
            weights = found.weights
        found = self.match(weights, NORMALISED, NORMALISED_WITH_EPSILON, NORMALISED_FROM_LEAST)
        if found is None:
            return weights
        self.attrs["normalise"] = True
        for name in ("epsilon", "least"):
            number = found._bound.get(name)
            if isinstance(number, Value):
                number = self.m.scalar(number)
            if number is not None:
                self.attrs[name] = float(number)
        return found.weights  # type: ignore[no-any-return]

    def read_chosen(self, values: Value, top: Match) -> Value | None:
        """Reads which scores are the weights. Returns all scores; None if only those of the chosen are computed."""
        after = self.match(values, SOFTMAX, SIGMOID)
        chosen = values if after is None else after.logits
        picked = self.match(chosen, PICKED)
        if picked is not None:
            self.m.require(picked.places is top.places, "the weights are picked by other places", chosen)
        else:
            self.m.require(chosen is top.values, "the weights are not the values of the experts' topk", chosen)
        every = top.choice if picked is None else picked.scores
        if after is None:
            return every
        self.attrs["score"] = after.root.op
        self.logits = every
        if after.root.op == "softmax":  # of the chosen alone, which is the softmax of all over their sum
            self.m.require(not self.attrs["normalise"], "the weights are normalised twice", values)
            self.attrs["normalise"] = True
        return None

    def read_groups(self, choice: Value, scores: Value | None) -> Value:
        """Reads which groups count. Returns the choice without this limit."""
        found = self.match(choice, LIMITED, LIMITED_BY_LARGEST)
        if found is None:
            return choice
        self.m.bind_shape(found.grouped, "S G N")
        self.m.bind_shape(found.counts, "S E")
        self.m.require(found.zeros.producer.attrs.get("value") == 0, "groups do not begin with zeros", found.zeros)
        left_out = self.m.scalar(found.left_out)
        self.m.require(left_out in (0.0, float("-inf")), "experts left out are neither 0 nor -inf", found.left_out)
        groups, size = found.grouped.shape[1:]
        limit, best = found.group_limit, found._bound.get("group_best", 1)
        if limit < groups:
            self.attrs |= {"groups": groups, "group_limit": limit, "group_best": best, "by_scores": True}
            # Softmax gives no 0, so that no expert left out is chosen before one that counts.
            positive = choice is scores and scores is not None and match_value(found.choice, SOFTMAX) is not None
            if left_out == 0.0 and not (positive and self.attrs["k"] <= limit * size):
                self.attrs["keeps_others"] = True
        return found.choice

    def read_choice(self, choice: Value, scores: Value | None) -> None:
        """Reads what experts are chosen by, and what their scores are computed of."""
        biased = self.match(choice, BIASED)
        if biased is not None:
            self.bias = stored_vector(biased.bias)
            choice = biased.scores
            self.m.require(self.bias is not None, "what is added to the scores is no vector of the checkpoint", choice)
        if scores is not None:
            limited = self.match(scores, LIMITED, LIMITED_BY_LARGEST)  # of which the weights are values, too
            scores = scores if limited is None else limited.choice
            found = self.take(scores, "the scores are neither a softmax nor a sigmoid", SOFTMAX, SIGMOID)
            self.attrs["score"], self.logits = found.root.op, found.logits
        self.m.require(choice is scores or choice is self.logits, "experts are chosen by something else", choice)
        if biased is not None and choice is scores:
            self.attrs["by_scores"] = True
        if self.attrs.get("score") == "softmax":
            del self.attrs["score"]

    def read_sparse_mixture(self) -> None:
        """Reads the routers of PhiMoE, which choose two experts one after the other."""
        mixed = self.take(self.m.weights, "", MIXED_SPARSELY)
        places = self.take(self.m.index, "the experts are not two places side by side", PLACES)
        self.m.require(
            (places.first, places.second) == (mixed.first, mixed.second), "the experts are other ones", self.m.index
        )
        limit = self.m.scalar(mixed.limit)
        self.m.require(self.m.scalar(mixed.limit_again) == limit, "the two limits differ", mixed.limit_again)
        lowest = (mixed.removed, self.m.scalar(mixed.minus_infinity), self.m.scalar(mixed.infinity_again))
        self.m.require(set(lowest) == {float("-inf")}, "what is left out is not minus infinity", self.m.weights)
        self.logits = mixed.logits
        self.attrs |= {"k": 2, "score": "sparsemixer", "jitter": limit / 2}


def stored_vector(value: Value) -> Value | None:
    """Returns the weight or constant of one number for each expert that `value` is, or is a view of."""
    node = value.node
    if node is not None and node.op == "view":
        value, node = node.operand(0), node.operand(0).node
    one_row = all(d == 1 for d in value.shape[:-1])
    return value if node is not None and node.op in STORED and value.rank > 0 and one_row else None


def check(m: Match) -> None:
    m.bind_shape(m.flat, "S H")
    reading = Reading(m)
    reading.read()
    logits = reading.logits
    assert logits is not None
    m.bind_shape(logits, "S E")
    m.require(logits.dtype == m.flat.dtype == "float32", "not float32", logits)
    for vector in (reading.bias, reading.expert_scales):
        if vector is not None:
            m.bind_shape(vector, "... E")
    m.notes["reading"] = reading


def replace(m: Match, g: Rewriter) -> Value:
    reading: Reading = m.notes["reading"]
    assert reading.logits is not None
    logits = g.view(reading.logits, shape=(1, *reading.logits.shape))
    vectors = [None if v is None else as_vector(g, v) for v in (reading.bias, reading.expert_scales)]
    while vectors and vectors[-1] is None:
        vectors.pop()
    index, weights = g.route(logits, *vectors, **reading.attrs)
    x = g.view(m.flat, shape=(1, *m.flat.shape))
    y = g.experts(x, index, weights, *m.root.inputs[3:], **m.root.attrs)
    out: Value = g.view(y, shape=m.out.shape)
    return out


def as_vector(g: Rewriter, value: Value) -> Value:
    """Returns a weight or constant of one row as a vector."""
    if value.rank == 1:
        return value
    shape, node = (int(value.shape[-1]),), value.producer
    if node.op == "constant":
        return g.constant(node.attrs["value"].reshape(shape), value.dtype, shape)
    expr = node.attrs["expr"].reshape(shape)
    vector: Value = g.weight(expr=expr, type=(value.dtype, shape), scope=node.scope)
    return vector


def recognise_router(graph: Graph) -> int:
    users = graph.users()

    def check_users(m: Match) -> None:
        """Checks, and that nobody else reads what the route makes unnecessary."""
        check(m)
        reading: Reading = m.notes["reading"]
        inside = {id(node) for node in (m.root, *reading.nodes)}
        for value in (value for node in reading.nodes for value in node.outputs):
            for user in users.get(value, ()):
                m.require(id(user) in inside, f"it is also used by {describe(user.outputs[0])}", value)
            m.require(value not in graph.outputs, "it is also an output of the graph", value)

    return apply(graph, PATTERN, check_users, replace)
