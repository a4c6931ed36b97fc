"""Ops on each element that no tiny model has, in the plugin form against the interpreter, in every activation type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.lowered import MemorySource
from support.pass_graphs import graph_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.emit.onnx.plugin_form import HANDLERS, emit_plugin_form
from tensorwright.builder.emit.onnx.reference_ops import evaluator
from tensorwright.builder.measure.interpreter import narrowed
from tensorwright.errors import LoweringError
from tensorwright.ir import Graph
from tensorwright.ir.facts import Facts
from tensorwright.ir.interpret import interpret
from tensorwright.ir.ops import ELEMENTWISE

N = 24
X = "  %x: float32[rows, 24] = gather_rows(%e, %logit_rows) in m\n"
HEAD = f"""
  %token_ids: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %t: float32[9, {N}] = weight() {{expr = @"t"}} in embed
  %e: float32[tokens, {N}] = embedding(%t, %token_ids) {{scale = 0.7}} in embed
{X}  %w: float32[{N}] = weight() {{expr = @"w"}} in m
  %third: float32[] = constant() {{value = 0.3333333}} in m
  %two: float32[] = constant() {{value = 2.0}} in m
  %p: float32[rows, {N}] = abs(%x) in m
  %q: float32[rows, {N}] = add(%p, %two) in m
"""
CASES = {
    **{op: f"{op}(%x)" for op in ("neg", "abs", "square", "tanh", "sigmoid", "silu", "relu", "erf", "exp", "softplus")},
    **{op: f"{op}(%q)" for op in ("sqrt", "rsqrt", "log")},
    **{op: f"{op}(%x, %w)" for op in ("add", "sub", "mul", "maximum", "minimum")},
    "div": "div(%x, %q)",
    "div by a number": "div(%x, %third)",
    "mul by a number": "mul(%x, %third)",
    "number first": "sub(%two, %x)",
    "pow": "pow(%q, %two)",
    "gelu": 'gelu(%x) {approximate = "none"}',
    "gelu tanh": 'gelu(%x) {approximate = "tanh"}',
    "clamp": "clamp(%x) {min = -0.5, max = 0.3333333}",
    "clamp above": "clamp(%x) {min = none, max = 0.25}",
    "cast": 'cast(%x) {dtype = "float32"}',
}
SLICE = f"  %y: float32[rows, 7] = slice(%x) {{dim = 1, start = 3, end = {N}, step = 3}} in m\n  return %y"
IDS = np.array([3, 1, 8, 3, 0], np.int32)


def made(text: str, dtype: str) -> Graph:
    graph = graph_of(text, "cached")
    columns = int(graph.outputs[0].shape[1])
    graph.facts = Facts(dtype=dtype, vocab_size=columns, block_size=4, kv_layers=[], max_seq_len=64)
    return graph


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_op(dtype: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(5).standard_normal
    table = draw((9, N)).astype(np.float32)
    source = MemorySource({"t": table, "w": draw(N).astype(np.float32)})
    ulp = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    bodies = {name: f"  %y: float32[rows, {N}] = {call} in m\n  return %y" for name, call in CASES.items()}
    for name, body in {**bodies, "slice": SLICE}.items():
        graph = made(HEAD + body, dtype)
        emit_plugin_form(graph, source, tmp_path, dtype)  # type: ignore[arg-type]
        rows = np.arange(len(IDS), dtype=np.int32)
        given = {"token_ids": IDS, "positions": IDS, "seq_starts": IDS, "context_lens": IDS, "logit_rows": rows}
        (got,) = evaluator(tmp_path / "model.onnx").run(None, given)
        inputs = {"token_ids": torch.from_numpy(IDS), "logit_rows": torch.from_numpy(rows)}
        (wanted,) = interpret(narrowed(graph, dtype), inputs, checkpoint_weights(source))
        expected = wanted.float().numpy()
        assert got.dtype == np.float32
        # Two libraries' functions, and one rounding that may go to the neighbour.
        # Below zero, 1 + erf and 1 + tanh cancel, and what they lost is multiplied by x.
        size = np.abs(0.7 * table[IDS]) if name.startswith("gelu") else np.abs(expected)
        allowed = (4 if dtype == "float32" else 1) * ulp * np.maximum(size, ulp)
        assert (np.abs(got - expected) <= allowed).all(), name
        assert got.shape == expected.shape
        assert np.ptp(got) > 0


def test_no_op_is_left_out_unseen() -> None:
    """What is missing is refused by name: comparisons and logic, which no decoder computes on
    activations, and expm1, which recognise_xielu takes."""
    missing = set(ELEMENTWISE) - set(HANDLERS)
    assert missing == {
        "eq", "ne", "lt", "le", "gt", "ge", "where", "logical_and", "logical_or", "logical_not", "floor_div",
        "remainder", "cos", "sin", "expm1",
    }  # fmt: skip
    graph = made(HEAD + f"  %y: float32[rows, {N}] = cos(%x) in m\n  return %y", "float32")
    with pytest.raises(LoweringError, match="m: cos has no ONNX form"):
        emit_plugin_form(graph, MemorySource({}), ".", "float32")  # type: ignore[arg-type]
