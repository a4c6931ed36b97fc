"""A lowered graph made by hand, one instruction of nearly every kind, and the checkpoint it reads."""

from __future__ import annotations

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS, RAW, gated
from tensorwright.errors import CheckpointError
from tensorwright.ir.facts import Buffer, Facts
from tensorwright.ir.graph import Graph, Value
from tensorwright.ir.weights import Ref
from tensorwright.models.dtypes import Ranges, Tensor

HIDDEN, INNER, VOCAB = 6, 5, 19


class MemorySource:
    """A TensorSource over arrays; uint16 arrays are bfloat16."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays

    def read(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise CheckpointError(f"no tensor {name!r}")
        array = self.arrays[name]
        return Tensor("bfloat16" if array.dtype == np.uint16 else array.dtype.name, array)

    def read_part(self, name: str, ranges: Ranges) -> Tensor:
        return self.read(name).part(ranges)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.read(name).shape

    def dtype(self, name: str) -> str:
        return self.read(name).dtype


def small_source() -> MemorySource:
    draw = np.random.default_rng(1).standard_normal
    shapes = {
        "embed": (VOCAB, HIDDEN), "norm": (HIDDEN,), "gate": (INNER, HIDDEN), "up": (INNER, HIDDEN),
        "gate_bias": (INNER,), "up_bias": (INNER,), "down": (HIDDEN, INNER), "down_bias": (HIDDEN,),
    }  # fmt: skip
    return MemorySource({name: draw(shape).astype(np.float32) for name, shape in shapes.items()})


def lowered_graph(dtype: str = "float32") -> Graph:
    """embedding, rotary table, norm, a gated MLP with biases and residual, gather, norm, and the tied head."""
    graph = Graph("hand", "lowered")
    tokens = ("tokens", HIDDEN)
    ids = graph.add("input", types=[("int32", ("tokens",))], names=["token_ids"]).output
    positions = graph.add("input", types=[("int32", ("tokens",))], names=["positions"]).output
    logit_rows = graph.add("input", types=[("int32", ("rows",))], names=["logit_rows"]).output

    def weight(expr, shape, layout=PANELS) -> Value:
        kind = ("float32" if layout == RAW else dtype, shape)
        return graph.add("weight", (), {"expr": expr, "layout": layout}, [kind]).output

    def add(op, inputs, attrs, shape, buffer, element="float32", scope=""):
        return graph.add(op, inputs, {**attrs, "buffers": [buffer]}, [(element, shape)], scope=scope).output

    norm_attrs = {"eps": 1e-5, "weight_offset": 0.0}
    norm = weight(Ref("norm"), (HIDDEN,), RAW)
    both = weight(Ref("gate").concat([Ref("up")]), (2 * INNER, HIDDEN), gated(PANELS))
    both_bias = weight(Ref("gate_bias").concat([Ref("up_bias")]), (2 * INNER,), RAW)
    x = add(
        "embedding",
        [weight(Ref("embed"), (VOCAB, HIDDEN)), ids],
        {"ids": 0, "first": 0, "rows": 0, "scale": 1.0},
        tokens,
        0,
        scope="model.embed",
    )
    inv_freq = graph.constant(np.array([1.0, 0.5], np.float32), "float32", (2,))
    add("rotary_table", [positions, inv_freq], {"scale": 1.0}, ("tokens", 4), 1)
    normed = add("rms_norm", [x, norm, None], norm_attrs, tokens, 2, dtype, scope="model.norm1")
    inner = add("matmul", [normed, both, both_bias, None], {"epilogue": 1, "n": INNER}, ("tokens", INNER), 3, dtype)
    down = [inner, weight(Ref("down"), (HIDDEN, INNER)), weight(Ref("down_bias"), (HIDDEN,), RAW), x]
    y = add("matmul", down, {"epilogue": 0, "n": HIDDEN}, tokens, 0, scope="model.mlp")
    last = add("gather_rows", [y, logit_rows], {}, ("rows", HIDDEN), 4)
    final = add("rms_norm", [last, norm, None], norm_attrs, ("rows", HIDDEN), 5, dtype)
    head = weight(Ref("embed"), (VOCAB, HIDDEN))
    logits = add("matmul", [final, head, None, None], {"epilogue": 0, "n": VOCAB}, ("rows", VOCAB), 6)
    graph.outputs = [logits]
    graph.facts = Facts(
        model_type="hand", dtype=dtype, vocab_size=VOCAB, max_seq_len=64, block_size=32, kv_layers=[],
        buffers=[
            Buffer("tokens", "float32", HIDDEN, 64, 0), Buffer("tokens", "float32", 4, 64, 64),
            Buffer("tokens", dtype, HIDDEN, 64, 128), Buffer("tokens", dtype, INNER, 64, 192),
            Buffer("rows", "float32", HIDDEN, 64, 0), Buffer("rows", dtype, HIDDEN, 64, 64),
            Buffer("rows", "float32", VOCAB, 128, 128),
        ],
        token_arena_bytes=256, row_arena_bytes=256,
    )  # fmt: skip
    return graph
