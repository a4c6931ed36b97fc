"""canonicalise_casts:  cast(x, dtype of x) -> x;  cast(cast(x, wide), b) -> cast(x, b) where the inner cast is exact"""

from __future__ import annotations

from tensorwright.ir import Graph
from tensorwright.passes.rewriting.matcher import Match, apply, pattern

SAME = pattern("out = cast(x)")
PAIR = pattern("""
    inner = cast(x)
    out   = cast(inner)
""", shared=["inner"])  # fmt: skip

# EXACT maps each type to the types that a cast can reach without loss.
EXACT = {
    "bool": {"int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "int8": {"int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "int32": {"int64", "float64"},
    "bfloat16": {"float32", "float64"},
    "float16": {"float32", "float64"},
    "float32": {"float64"},
}


def check_same(m: Match) -> None:
    m.require(m.x.dtype == m.out.dtype, "the cast changes the type", m.x)


def check_pair(m: Match) -> None:
    wider = EXACT.get(m.x.dtype, set())
    m.require(m.inner.dtype in wider, lambda: f"{m.x.dtype} does not fit in {m.inner.dtype}", m.inner)


def canonicalise_casts(graph: Graph) -> int:
    pairs = apply(graph, PAIR, check_pair, lambda m, g: g.cast(m.x, dtype=m.out.dtype))
    return pairs + apply(graph, SAME, check_same, lambda m, g: m.x)
