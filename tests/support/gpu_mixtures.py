"""Cases of the GPU kernels of mixtures of experts, in the form of support/gpu_rows.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from tolerances import rounding_tolerance, sum_tolerance

from support.gpu_rows import DTYPES, Arrays, Case
from support.gpu_stored import numbers_of, stacked
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.plugins.experts import launch as experts
from tensorwright.plugins.experts.gate import check_gate
from tensorwright.plugins.experts.op import compute, multiply_floats, own_experts
from tensorwright.plugins.quantized_matmul.rows_launch import Form
from tensorwright.plugins.route import launch as route
from tensorwright.plugins.route import op as route_op


def route_case(dtype: str, rows: int, count: int, *, bias: bool = False, scales: bool = False, **attrs: Any) -> Case:
    """Logits are multiples of 1/4 without order, so that some are equal in every type."""
    rng = np.random.default_rng(rows + count)
    inputs = {"logits": (rng.integers(-16, 16, (rows, count)) / 4.0, dtype)}
    inputs |= {"bias": (rng.integers(-4, 4, count) / 8.0, "float32")} if bias else {}
    inputs |= {"expert_scales": (rng.uniform(0.5, 2, count), "float32")} if scales else {}
    attrs = {"normalise": True, **attrs}

    def expected(x: Arrays) -> Arrays:
        operands = [x["logits"], x.get("bias"), x.get("expert_scales")]
        index, weights = route_op.reference(operands, attrs, "float32")
        return {"index": index.astype(np.float64), "weights": weights.astype(np.float64)}

    form = "-".join(f"{name}:{value}" for name, value in attrs.items())
    return Case(
        f"route-{dtype}-{rows}x{count}-{form}" + "-bias" * bias + "-scales" * scales,
        route,
        attrs,
        {"experts": count},
        inputs,
        {"index": ((rows, attrs["k"]), "int32"), "weights": ((rows, attrs["k"]), "float32")},
        expected,
        error=lambda x: np.float64(3e-6 * attrs.get("scale", 1.0)),  # a few spacings of numbers up to 2
    )


def experts_case(
    dtype: str,
    tokens: int,
    hidden: int,
    inner: int,
    count: int,
    k: int,
    *,
    biases: bool = False,
    identities: int = 0,
    part: tuple[int, int] = (0, 0),
    only: int | None = None,
    fmt: WeightFormat | None = None,
    **attrs: Any,
) -> Case:
    """part: (first, total) of a rank's experts. only: the expert that every slot takes. fmt: of quantized
    matrices. Weights are powers of two, so that products of them round nothing."""
    rng = np.random.default_rng(tokens + hidden + count)
    first, total = part
    attrs = {"activation": "silu", **attrs}
    attrs |= {"identities": identities} if identities else {}
    attrs |= {"first": first, "total": total} if total else {}
    every = check_gate({key: value for key, value in attrs.items() if key not in ("identities", "first", "total")})
    numbers = total or count + identities
    index = np.stack([rng.permutation(numbers)[:k] for _ in range(tokens)]) if tokens else np.zeros((0, k), np.int64)
    index = index if only is None else np.full((tokens, k), only)
    rows, stored = (2 if every["gated"] else 1) * inner, dict[str, Any]()
    inputs: dict[str, tuple[np.ndarray, str]] = {
        "x": (rng.standard_normal((tokens, hidden)), dtype),
        "index": (index, "int32"),
        "weights": (2.0 ** rng.integers(-3, 1, (tokens, k)), "float32"),
        "up": (rng.standard_normal((count, rows, hidden)) / np.sqrt(hidden), dtype),
        "down": (rng.standard_normal((count, hidden, inner)) / np.sqrt(inner), dtype),
    }
    if fmt is not None:
        for name in ("up", "down"):
            values, scales = stacked(fmt, inputs[name][0].shape)
            inputs |= {name: (values, "int8"), f"{name}_scales": (scales, dtype)}
        form = Form.of(fmt)
        stored = {"form": form.name, "group": form.group, "inner": inner}
    if biases:
        inputs["up_bias"] = (rng.standard_normal((count, rows)), "float32")
        inputs["down_bias"] = (rng.standard_normal((count, hidden)), "float32")

    def operands(x: Arrays) -> list[Any]:
        up, down = (
            x[name] if fmt is None else numbers_of(x[name], x[f"{name}_scales"], fmt, columns)
            for name, columns in (("up", hidden), ("down", inner))
        )
        return [*(x[name] for name in ("x", "index", "weights")), up, down, x.get("up_bias"), x.get("down_bias")]

    def expected(x: Arrays) -> Arrays:
        y = compute(operands(x), {**attrs, "inner": dtype}, multiply_floats) if tokens else np.zeros((0, hidden))
        return {"y": y}

    def error(x: Arrays) -> np.ndarray:
        return error_of(operands(x), attrs, every, dtype)

    form = "-".join(f"{name}:{value}" for name, value in attrs.items()) + "-biases" * biases
    return Case(
        f"experts-{dtype}-{tokens}x{hidden}-{count}x{inner}-{k}-{form}"
        + f"-{only}" * (only is not None)
        + f"-{fmt}" * (fmt is not None),
        experts,
        {**attrs, **stored},
        {"experts": count, "hidden": hidden, "inner": inner, "k": k},
        inputs,
        {"y": ((tokens, hidden), dtype)},
        expected,
        error=error,
        ulps=8,
    )


def error_of(operands: list[Any], attrs: dict[str, Any], every: dict[str, Any], dtype: str) -> np.ndarray:
    """Returns the bound for each element of y.

    A sum of H products is off by what `sum_tolerance` says of its magnitude m. Slopes of the activations are at most
    1.13, and that of silu grows with `slope`; so the gate is off by 2.3 m m' eps H at most, and may then be rounded to
    the number beside the definition's. That goes through the second product, and each slot's result is rounded once.
    """
    x, index, weights, up, down, up_bias, down_bias = operands
    bound = np.zeros(x.shape)
    scaled = every["scales_input"]
    for expert, places in own_experts(index, attrs, len(up)):
        if expert >= len(up):
            continue
        row, slot = np.nonzero(places)
        share = weights[row, slot, None].astype(np.float64)
        of_up = np.abs(x[row].astype(np.float64)) * (share if scaled else 1.0) @ np.abs(up[expert].astype(np.float64)).T
        of_up = of_up + (0.0 if up_bias is None else np.abs(up_bias[expert])) + 1.0
        halves = np.split(of_up, 2, axis=1) if every["gated"] else [of_up, of_up if every["squared"] else 1.0]
        size = halves[0] * (halves[1] + every["up_offset"])
        inner = sum_tolerance("float32", x.shape[1] + 16, 2.3 * max(every["slope"], 1.0) * size)
        inner = inner + rounding_tolerance(dtype, size, 2)
        matrix = np.abs(down[expert].astype(np.float64)).T
        given = size @ matrix + (0.0 if down_bias is None else np.abs(down_bias[expert]))
        of_sum = sum_tolerance("float32", down.shape[2] + 1, given) + rounding_tolerance(dtype, given)
        np.add.at(bound, row, (1.0 if scaled else share) * (inner @ matrix + of_sum))
    return bound


CASES = [
    *(route_case(dtype, 4, 8, k=2) for dtype in DTYPES),
    route_case("float32", 3, 60, k=4, normalise=False, scale=2.5, scales=True),
    route_case("float32", 5, 48, k=6, bias=True, score="sigmoid", by_scores=True, groups=6, group_limit=2, group_best=2,
               scale=2.5, epsilon=1e-20),
    route_case("float32", 5, 16, k=3, by_scores=True, groups=4, group_limit=2, keeps_others=True, least=1e-9),
    route_case("float32", 3, 9, k=9, score="sigmoid"),
    route_case("float32", 0, 8, k=2),
    *(experts_case(dtype, 5, 48, 40, 6, 2) for dtype in DTYPES),
    experts_case("bfloat16", 3, 64, 33, 4, 2, biases=True, slope=1.702, limit=1.5, up_offset=1.0),
    experts_case("float16", 3, 40, 24, 4, 2, activation="gelu", limit=0.5, limits_activated=True),
    experts_case("float32", 3, 24, 16, 4, 2, activation="relu", gated=False, squared=True, biases=True),
    experts_case("bfloat16", 4, 32, 16, 4, 1, scales_input=True, biases=True),
    experts_case("bfloat16", 4, 32, 16, 4, 3, identities=3),
    experts_case("float16", 6, 32, 16, 3, 2, part=(2, 7)),
    experts_case("float16", 40, 72, 70, 2, 1, only=1),
    *(experts_case(dtype, 5, 72, 40, 6, 2, fmt=WeightFormat(4, 32)) for dtype in DTYPES),
    experts_case("bfloat16", 3, 130, 70, 4, 2, fmt=WeightFormat(8, 64), biases=True),
    experts_case("float16", 3, 48, 37, 4, 2, fmt=WeightFormat(8, 0, "fp"), activation="gelu"),
    experts_case("bfloat16", 40, 72, 70, 2, 1, only=1, fmt=WeightFormat(4, 128)),
    experts_case("float32", 0, 16, 16, 4, 2),
]  # fmt: skip
