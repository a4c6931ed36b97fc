"""What quantization costs, for config.json: the formats, bits per weight as stored, the error of every weight.

Errors are kept by place: {name of the weight within a layer: [error in layer 0, 1, ...]}, None where a layer lacks it.
The embedding and lm_head have one entry each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tensorwright.builder.accuracy_metrics import rounded
from tensorwright.builder.emit.cpu_weights import WeightPlan, WeightTable
from tensorwright.builder.ir.graph import Graph, Node
from tensorwright.models.weights import WeightExpr
from tensorwright.plugins.quantized_matmul.formats import parse_spec

EMBEDDING, LM_HEAD, LAYERS = "embedding", "lm_head", "layers"
MATRIX_OPS = {"matmul": 1, "quantized_matmul": 1, "quantized_linear": 1, "embedding": 0, "quantized_embedding": 0}
"""Where the matrix stands among the operands."""
_LAYER = re.compile(r"\.(\d+)\.")

Place = tuple[str, int]
"""(name within a layer, layer)."""


def quantization_record(lowered: Graph, weights: WeightTable) -> dict[str, Any] | None:
    """The record of weights that were streamed; None if none is quantized.

    bits_per_weight: bytes stored, scales and padding included, over weights of the checkpoint; "all" counts norms and
    biases, and a matrix that is stored in two formats once. weight_errors: root of the mean squared error over that of
    the weight, by place.
    """
    if not lowered.facts.get("quantize"):
        return None
    spec = parse_spec(str(lowered.facts["quantize"]))
    uses = list(matrix_uses(lowered, weights))
    errors = {place: weights.errors[plan.key].value for _, place, plan in uses if plan.key in weights.errors}
    tied = {p.key.source for role, _, p in uses if role == EMBEDDING} & {
        p.key.source for role, _, p in uses if role == LM_HEAD
    }
    return {
        "spec": str(spec),
        "tied": bool(tied),
        "bits_per_weight": {"all": all_bits(weights)}
        | {role: role_bits(plan for r, _, plan in uses if r == role) for role in (LAYERS, EMBEDDING, LM_HEAD)},
        "weight_errors": by_name(errors),
    }


def matrix_uses(lowered: Graph, weights: WeightTable) -> Iterable[tuple[str, Place, WeightPlan]]:
    """(role, place, record) of every matrix of the checkpoint that an instruction reads."""
    plans = {(plan.key.source, plan.key.layout): plan for plan in weights.plans}
    for node in lowered.nodes:
        expr = matrix_of(node)
        if expr is not None:
            layout = node.inputs[MATRIX_OPS[node.op]].node.attrs["layout"]  # type: ignore[union-attr]
            yield role_of(node), place_of(node), plans[expr, layout]


def matrix_of(node: Node) -> WeightExpr | None:
    """The matrix that a node multiplies or gathers from, if it is the checkpoint's."""
    at = MATRIX_OPS.get(node.op)
    value = None if at is None else node.inputs[at]
    return value.node.attrs["expr"] if value is not None and value.node and value.node.op == "weight" else None


def role_of(node: Node) -> str:
    """A table of positions counts as a layer's."""
    if node.op.endswith("embedding"):
        gathers = node.inputs[1]
        return EMBEDDING if gathers is not None and gathers.name == "token_ids" else LAYERS
    return LM_HEAD if node.output.shape[0] == "rows" else LAYERS


def place_of(node: Node) -> Place:
    """Of a node with a matrix. Matrices that were joined: "self_attn.q_proj+k_proj"."""
    role, expr = role_of(node), matrix_of(node)
    assert expr is not None
    if role != LAYERS:
        return role, 0
    names = [name.removesuffix(".weight") for name in dict.fromkeys(expr.refs())]
    found = [_LAYER.search(name) for name in names]
    tails = [name[match.end() :] if match else name for name, match in zip(names, found, strict=True)]
    parent = tails[0].rpartition(".")[0]
    rest = [tail.removeprefix(f"{parent}.") if parent else tail for tail in tails[1:]]
    return "+".join([tails[0], *rest]), int(found[0][1]) if found[0] else 0


def by_name(values: dict[Place, float]) -> dict[str, list[float | None]]:
    table: dict[str, list[float | None]] = {}
    for (name, layer), value in values.items():
        row = table.setdefault(name, [])
        row += [None] * (layer + 1 - len(row))
        row[layer] = rounded(value, 3)
    return table


def role_bits(plans: Iterable[WeightPlan]) -> float | None:
    """Bits per weight of the distinct records; None where there are none."""
    distinct = {plan.key: plan for plan in plans}.values()
    count = sum(plan.rows * plan.k for plan in distinct)
    return rounded(8 * sum(plan.bytes for plan in distinct) / count, 4) if count else None


def all_bits(weights: WeightTable) -> float | None:
    """Bits of weights.bin per weight of the checkpoint."""
    counts = {plan.key.source: plan.rows * (plan.k if plan.n > 1 else 1) for plan in weights.plans}
    return rounded(8 * weights.total_bytes / sum(counts.values()), 4)
